/* hello.c - makes and checks the messages of the handshake (hello.h). */
#include "comm/store/hello.h"

#include <sodium.h>
#include <string.h>

enum { version = 1, tag_bytes = 8 };

static const uint8_t hello_magic[8] = "TernHi\r\n";
static const uint8_t challenge_magic[8] = "TernYo\r\n";
static const uint8_t welcome_magic[8] = "TernIn\r\n";
static const uint8_t callee_tag[tag_bytes] = "callee";
static const uint8_t caller_tag[tag_bytes] = "caller";

_Static_assert(sizeof(tern__hello) == 64 && sizeof(tern__challenge) == 72, "no padding on the wire");
_Static_assert(TERN__MAC_BYTES == crypto_auth_hmacsha256_BYTES, "HMAC-SHA256");
_Static_assert(TERN__SECRET_BYTES == crypto_auth_hmacsha256_KEYBYTES, "HMAC-SHA256");

int tern__hello_init(tern_error *err)
{
    if (sodium_init() >= 0) return TERN_OK;
    return tern__error_set(err, "tern_group_open", TERN_E_SYSTEM,
                           "libsodium cannot start: no source of random bytes");
}

/* Authenticates one direction's transcript: tag, the whole hello, the callee's nonce. */
static void hello_sign(uint8_t mac[TERN__MAC_BYTES], const uint8_t *tag, const tern__hello *hello,
                       const uint8_t *callee_nonce, const uint8_t *secret)
{
    uint8_t transcript[tag_bytes + sizeof(*hello) + TERN__NONCE_BYTES];
    memcpy(transcript, tag, tag_bytes);
    memcpy(transcript + tag_bytes, hello, sizeof(*hello));
    memcpy(transcript + tag_bytes + sizeof(*hello), callee_nonce, TERN__NONCE_BYTES);
    crypto_auth_hmacsha256(mac, transcript, sizeof(transcript), secret);
}

/* Compares in constant time, so that the time does not show how many bytes of a guess are right. */
static bool is_signed(const uint8_t mac[TERN__MAC_BYTES], const uint8_t *tag, const tern__hello *hello,
                      const uint8_t *callee_nonce, const uint8_t *secret)
{
    uint8_t expected[TERN__MAC_BYTES];
    hello_sign(expected, tag, hello, callee_nonce, secret);
    return sodium_memcmp(mac, expected, sizeof(expected)) == 0;
}

void tern__hello_make(tern__hello *hello, tern__purpose purpose, int from, int to, int world)
{
    *hello = (tern__hello){
        .version = version,
        .purpose = purpose,
        .from = (uint32_t)from,
        .to = (uint32_t)to,
        .world = (uint32_t)world,
    };
    memcpy(hello->magic, hello_magic, sizeof(hello_magic));
    randombytes_buf(hello->nonce, sizeof(hello->nonce));
}

bool tern__hello_answer(const tern__hello *hello, const tern__challenge *challenge, const uint8_t *secret,
                        tern__proof *proof)
{
    if (memcmp(challenge->magic, challenge_magic, sizeof(challenge_magic))) return false;
    if (!is_signed(challenge->mac, callee_tag, hello, challenge->nonce, secret)) return false;
    hello_sign(proof->mac, caller_tag, hello, challenge->nonce, secret);
    return true;
}

bool tern__hello_is_for(const tern__hello *hello, tern__purpose purpose, int to, int world)
{
    return !memcmp(hello->magic, hello_magic, sizeof(hello_magic)) && hello->version == version &&
           hello->purpose == (uint32_t)purpose && hello->to == (uint32_t)to && hello->from < hello->world &&
           (!world || hello->world == (uint32_t)world) && hello->zero == 0;
}

void tern__hello_challenge(const tern__hello *hello, const uint8_t *secret, tern__challenge *challenge)
{
    memcpy(challenge->magic, challenge_magic, sizeof(challenge_magic));
    randombytes_buf(challenge->nonce, sizeof(challenge->nonce));
    hello_sign(challenge->mac, callee_tag, hello, challenge->nonce, secret);
}

bool tern__hello_is_proved(const tern__hello *hello, const tern__challenge *challenge, const uint8_t *secret,
                           const tern__proof *proof)
{
    return is_signed(proof->mac, caller_tag, hello, challenge->nonce, secret);
}

void tern__hello_welcome(tern__welcome *welcome)
{
    memcpy(welcome->magic, welcome_magic, sizeof(welcome_magic));
}

int64_t tern__hello_extra(int64_t deadline)
{
    const int64_t late_ns = INT64_C(100000000), late = tern__now_ns() - deadline;
    return late > late_ns ? late + (int64_t)(TERN__HELLO_DEADLINE_S * 1e9) : 0;
}

bool tern__hello_is_welcome(const tern__welcome *welcome)
{
    return !memcmp(welcome->magic, welcome_magic, sizeof(welcome_magic));
}
