/* delay.h - included before each source of the native back end in the tests comm/NOUN_delayed, and in nothing
 * else. Every access to an atomic word is a step of the protocol. Before and after it a rank may now lose its
 * core, spin or sleep, so that the ranks meet in orders that they otherwise hardly ever take. */
#ifndef TERN_TESTS_COMM_DELAY_H
#define TERN_TESTS_COMM_DELAY_H

#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

static inline void delay_sleep(long ns)
{
    nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
}

/* Most steps take no time: only where two ranks differ in speed does an order change. */
static inline void delay_step(void)
{
    static _Thread_local uint64_t state;
    struct timespec now;
    if (!state) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        state = (uint64_t)now.tv_nsec * 2654435761u ^ (uint64_t)(uintptr_t)&now;
    }
    state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    unsigned draw = (unsigned)(state >> 40);
    if (draw % 4096 == 0)
        delay_sleep(1 + draw / 4096 % 4 * 100000);
    else if (draw % 16 == 1)
        sched_yield();
    else if (draw % 16 == 2)
        for (volatile unsigned i = 0; i < draw / 16 % 512; i++) continue;
}

#undef atomic_load
#undef atomic_load_explicit
#undef atomic_store
#undef atomic_store_explicit
#undef atomic_fetch_add
#undef atomic_fetch_sub
#undef atomic_fetch_or
#undef atomic_compare_exchange_weak
#undef atomic_compare_exchange_strong

#define DELAY_BOTH(call)                                                                                     \
    ({                                                                                                       \
        delay_step();                                                                                        \
        __auto_type result_ = (call);                                                                        \
        delay_step();                                                                                        \
        result_;                                                                                             \
    })

#define atomic_load(at)                       DELAY_BOTH(__atomic_load_n(at, __ATOMIC_SEQ_CST))
#define atomic_load_explicit(at, how)         DELAY_BOTH(__atomic_load_n(at, how))
#define atomic_store_explicit(at, value, how) (delay_step(), __atomic_store_n(at, value, how), delay_step())
#define atomic_store(at, value)               atomic_store_explicit(at, value, __ATOMIC_SEQ_CST)
#define atomic_fetch_add(at, value)           DELAY_BOTH(__atomic_fetch_add(at, value, __ATOMIC_SEQ_CST))
#define atomic_fetch_sub(at, value)           DELAY_BOTH(__atomic_fetch_sub(at, value, __ATOMIC_SEQ_CST))
#define atomic_fetch_or(at, value)            DELAY_BOTH(__atomic_fetch_or(at, value, __ATOMIC_SEQ_CST))
#define atomic_compare_exchange_strong(at, expected, value)                                                  \
    DELAY_BOTH(__atomic_compare_exchange_n(at, expected, value, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
#define atomic_compare_exchange_weak(at, expected, value)                                                    \
    DELAY_BOTH(__atomic_compare_exchange_n(at, expected, value, 1, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))

#endif
