/* hello.h - the handshake that opens every connection of a job, TCP or Unix. Both sides prove that they know
 * the secret.
 *
 *   caller -> hello      {magic, version, purpose, from, to, world, nonce}
 *   callee -> challenge  {magic, nonce, HMAC(secret, "callee" hello nonce)}
 *   caller -> proof      {HMAC(secret, "caller" hello nonce)}
 *   callee -> welcome    {magic}
 *
 * Both nonces are fresh, so nothing can be replayed. The direction is in the MAC, so nothing can be
 * reflected. Ranks and purpose are in the hello, so a proof is valid for this connection only. All messages
 * have a fixed size, so nobody trusts a length before the proof. After the welcome each side knows that the
 * other has accepted it. Without a secret the key is all zeros: this tells tern from other programs, but not
 * one job from another. The handshake authenticates the set-up, not the bytes that follow. */
#ifndef TERN_SRC_COMM_STORE_HELLO_H
#define TERN_SRC_COMM_STORE_HELLO_H

#include "comm/bootstrap/bootstrap.h"

#define TERN__NONCE_BYTES      32
#define TERN__MAC_BYTES        32
#define TERN__HELLO_DEADLINE_S 5.0 /* from accept to proof */
#define TERN__HELLO_TRIES      5   /* of a caller whose connection is closed before the welcome */
#define TERN__HELLO_GRACE_NS   INT64_C(250000000) /* after this a stranger's slot may go to the next caller */

typedef enum tern__purpose {
    TERN__PURPOSE_STORE = 1,
    TERN__PURPOSE_CONTROL = 2,
    TERN__PURPOSE_NODES = 3, /* between the launchers of several hosts */
} tern__purpose;

typedef struct tern__hello {
    uint8_t magic[8]; /* its first byte, 'T', is no TCPStore query */
    uint32_t version, purpose, from, to, world, zero;
    uint8_t nonce[TERN__NONCE_BYTES];
} tern__hello;

typedef struct tern__challenge {
    uint8_t magic[8];
    uint8_t nonce[TERN__NONCE_BYTES];
    uint8_t mac[TERN__MAC_BYTES];
} tern__challenge;

typedef struct tern__proof {
    uint8_t mac[TERN__MAC_BYTES];
} tern__proof;

typedef struct tern__welcome {
    uint8_t magic[8];
} tern__welcome;

/* Call it before the other functions, from any thread. */
int tern__hello_init(tern_error *err);

/* ---- caller ---- */
void tern__hello_make(tern__hello *hello, tern__purpose purpose, int from, int to, int world);
/* Returns false if the callee does not know the secret; otherwise fills `proof`. */
bool tern__hello_answer(const tern__hello *hello, const tern__challenge *challenge, const uint8_t *secret,
                        tern__proof *proof);

bool tern__hello_is_welcome(const tern__welcome *welcome);

/* ---- callee ---- */
/* Returns by how much the time of all strangers is to be extended, so that they have all of it again: the
 * first one's deadline was long ago, so this process has been stopped meanwhile. Else 0. */
int64_t tern__hello_extra(int64_t deadline);
/* Returns true for a hello of this version, purpose and callee, from a rank of a world of this size (0: any).
 */
bool tern__hello_is_for(const tern__hello *hello, tern__purpose purpose, int to, int world);
void tern__hello_challenge(const tern__hello *hello, const uint8_t *secret, tern__challenge *challenge);
bool tern__hello_is_proved(const tern__hello *hello, const tern__challenge *challenge, const uint8_t *secret,
                           const tern__proof *proof);
void tern__hello_welcome(tern__welcome *welcome);

#endif
