/* test_arena.c - memory that peers reach (tern_group_mem_alloc): every rank allocates and frees blocks of its
 * own sizes at its own time, and collectives work in them at any offset, beside ordinary memory of other
 * ranks. The expected results are those of elements.h. */
#include "elements.h"
#include "place.h"

#include "comm/call/arena.h"

#include <dirent.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

enum { BLOCKS = 12 };

#ifdef __SANITIZE_THREAD__
enum { ROUNDS = 30, PAIRS = 1000 };
#else
enum { ROUNDS = 120, PAIRS = 10000 };
#endif

static uint64_t draw(uint64_t *seed)
{
    *seed = *seed * UINT64_C(6364136223846793005) + 1442695040888963407;
    return *seed >> 33;
}

/* ---- blocks of different sizes on each rank ---- */

typedef struct block {
    char *at;
    size_t bytes;
    bool is_plain;
} block;

typedef struct player {
    tern_group *group;
    int rank, world;
    uint64_t seed, own; /* the same on all ranks; this rank's own */
    block blocks[BLOCKS];
    char *expected;
    tern_error err;
} player;

static void block_free(player *p, block *b)
{
    if (b->is_plain)
        free(b->at);
    else
        tern_group_mem_free(p->group, b->at);
    *b = (block){0};
}

/* Frees a few blocks in any order, and returns memory of `bytes`: in the arena at the start or in the middle
 * of a block, new or old, or ordinary memory. A new block is zeroed. */
static char *memory_of(player *p, size_t bytes)
{
    size_t lead = draw(&p->own) % 3 ? draw(&p->own) % 5000 : 0;
    for (int i = 0; i < 3; i++) block_free(p, &p->blocks[draw(&p->own) % BLOCKS]);
    block *b = &p->blocks[draw(&p->own) % BLOCKS];
    if (b->at && b->bytes >= lead + bytes) return b->at + lead;
    block_free(p, b);
    *b = (block){.bytes = lead + bytes + draw(&p->own) % 9000 + 1, .is_plain = draw(&p->own) % 3 == 0};
    b->at = b->is_plain ? malloc(b->bytes) : tern_group_mem_alloc(p->group, b->bytes, &p->err);
    for (size_t i = 0; b->at && !b->is_plain && i < b->bytes; i += 509)
        if (b->at[i]) p->err.code = TERN_E_STATE;
    return b->at ? b->at + lead : NULL;
}

static int player_open(player *p, tern_group *group, int rank, uint64_t seed, size_t most)
{
    *p = (player){.group = group, .seed = seed};
    p->rank = tern_group_rank(group);
    p->world = tern_group_size(group);
    p->own = seed * 31 + (uint64_t)rank * 7919 + 1;
    p->expected = malloc(most);
    tern_group_mem_alloc(group, 1 + (size_t)rank * 100, &p->err);
    RANK_CHECK_OK(rank, p->err);
    return 0;
}

static void player_close(player *p)
{
    for (int i = 0; i < BLOCKS; i++) block_free(p, &p->blocks[i]);
    free(p->expected);
}

/* ---- each collective ---- */

/* Each rank may post a work that its peers wait for at once. */
static bool is_posted(player *p)
{
    return draw(&p->own) % 2;
}

static const tern_dtype dtypes[] = {TERN_F32, TERN_BF16, TERN_I64, TERN_U8, TERN_F64, TERN_F16};

static int check_all_reduce(player *p, tern_dtype dtype, tern_reduce_op op, size_t count)
{
    char *x = memory_of(p, count * tern_dtype_bytes(dtype));
    RANK_CHECK_OK(p->rank, p->err);
    elements_put(dtype, x, p->rank, 0, count);
    elements_reduced(dtype, op, p->expected, p->world, 0, count);
    if (is_posted(p))
        tern_work_wait(tern_all_reduce_post(p->group, x, count, dtype, op, &p->err), &p->err);
    else
        tern_all_reduce(p->group, x, count, dtype, op, &p->err);
    RANK_CHECK_OK(p->rank, p->err);
    RANK_CHECK(p->rank, elements_match(dtype, x, p->expected, count));
    return 0;
}

static int check_reduce(player *p, tern_dtype dtype, tern_reduce_op op, int root, size_t count)
{
    char *x = memory_of(p, count * tern_dtype_bytes(dtype));
    RANK_CHECK_OK(p->rank, p->err);
    elements_put(dtype, x, p->rank, 0, count);
    elements_put(dtype, p->expected, p->rank, 0, count);
    if (p->rank == root) elements_reduced(dtype, op, p->expected, p->world, 0, count);
    tern_reduce(p->group, x, count, dtype, op, root, &p->err);
    RANK_CHECK_OK(p->rank, p->err);
    RANK_CHECK(p->rank, elements_match(dtype, x, p->expected, count));
    return 0;
}

static int check_reduce_scatter(player *p, tern_dtype dtype, tern_reduce_op op, size_t count)
{
    size_t part = count * tern_dtype_bytes(dtype);
    char *x = memory_of(p, part * (size_t)p->world), *out = malloc(part + 1);
    bool is_in_place = draw(&p->own) % 2;
    RANK_CHECK_OK(p->rank, p->err);
    char *to = is_in_place ? x + (size_t)p->rank * part : out;
    elements_put(dtype, x, p->rank, 0, count * (size_t)p->world);
    tern_reduce_scatter(p->group, x, to, count, dtype, op, &p->err);
    RANK_CHECK_OK(p->rank, p->err);
    elements_reduced(dtype, op, p->expected, p->world, (size_t)p->rank * count, count);
    RANK_CHECK(p->rank, elements_match(dtype, to, p->expected, count));
    free(out);
    return 0;
}

static int check_broadcast(player *p, tern_dtype dtype, int root, size_t count)
{
    char *x = memory_of(p, count * tern_dtype_bytes(dtype));
    RANK_CHECK_OK(p->rank, p->err);
    elements_put(dtype, x, p->rank, 0, count);
    elements_put(dtype, p->expected, root, 0, count);
    if (is_posted(p))
        tern_work_wait(tern_broadcast_post(p->group, x, count, dtype, root, &p->err), &p->err);
    else
        tern_broadcast(p->group, x, count, dtype, root, &p->err);
    RANK_CHECK_OK(p->rank, p->err);
    RANK_CHECK(p->rank, !memcmp(x, p->expected, count * tern_dtype_bytes(dtype)));
    return 0;
}

static int check_all_gather(player *p, tern_dtype dtype, size_t count)
{
    size_t part = count * tern_dtype_bytes(dtype);
    char *out = memory_of(p, part * (size_t)p->world), *in = malloc(part + 1);
    RANK_CHECK_OK(p->rank, p->err);
    char *from = draw(&p->own) % 2 ? out + (size_t)p->rank * part : in;
    elements_put(dtype, from, p->rank, 0, count);
    tern_all_gather(p->group, from, out, count, dtype, &p->err);
    RANK_CHECK_OK(p->rank, p->err);
    for (int rank = 0; rank < p->world; rank++)
        elements_put(dtype, p->expected + (size_t)rank * part, rank, 0, count);
    RANK_CHECK(p->rank, !memcmp(out, p->expected, part * (size_t)p->world));
    free(in);
    return 0;
}

static int check_gather(player *p, tern_dtype dtype, int root, size_t count)
{
    size_t part = count * tern_dtype_bytes(dtype);
    char *in = memory_of(p, part), *out = malloc(part * (size_t)p->world + 1);
    RANK_CHECK_OK(p->rank, p->err);
    elements_put(dtype, in, p->rank, 0, count);
    tern_gather(p->group, in, out, count, dtype, root, &p->err);
    RANK_CHECK_OK(p->rank, p->err);
    for (int rank = 0; rank < p->world; rank++)
        elements_put(dtype, p->expected + (size_t)rank * part, rank, 0, count);
    RANK_CHECK(p->rank, p->rank != root || !memcmp(out, p->expected, part * (size_t)p->world));
    free(out);
    return 0;
}

static int check_scatter(player *p, tern_dtype dtype, int root, size_t count)
{
    size_t part = count * tern_dtype_bytes(dtype);
    char *in = memory_of(p, part * (size_t)p->world), *out = malloc(part + 1);
    RANK_CHECK_OK(p->rank, p->err);
    elements_put(dtype, in, p->rank, 0, count * (size_t)p->world);
    tern_scatter(p->group, in, out, count, dtype, root, &p->err);
    RANK_CHECK_OK(p->rank, p->err);
    elements_put(dtype, p->expected, root, (size_t)p->rank * count, count);
    RANK_CHECK(p->rank, !memcmp(out, p->expected, part));
    free(out);
    return 0;
}

static int check_all_to_all(player *p, tern_dtype dtype, size_t count)
{
    size_t part = count * tern_dtype_bytes(dtype), world = (size_t)p->world;
    char *in = memory_of(p, part * world), *out = malloc(part * world + 1);
    RANK_CHECK_OK(p->rank, p->err);
    elements_put(dtype, in, p->rank, 0, count * world);
    tern_all_to_all(p->group, in, out, count, dtype, &p->err);
    RANK_CHECK_OK(p->rank, p->err);
    for (int rank = 0; rank < p->world; rank++)
        elements_put(dtype, p->expected + (size_t)rank * part, rank, (size_t)p->rank * count, count);
    RANK_CHECK(p->rank, !memcmp(out, p->expected, part * world));
    free(out);
    return 0;
}

/* Unequal parts go through the ring, wherever they are. */
static int check_uneven(player *p, size_t count)
{
    size_t given[RANKS_MAX], taken[RANKS_MAX], all = 0, sum = 0;
    for (int rank = 0; rank < p->world; rank++) {
        given[rank] = count % 1000 + (size_t)(p->rank + 2 * rank);
        taken[rank] = count % 1000 + (size_t)(rank + 2 * p->rank);
        all += given[rank];
        sum += taken[rank];
    }
    int64_t *in = (int64_t *)memory_of(p, (all + 1) * 8), *out = malloc((sum + 1) * 8);
    RANK_CHECK_OK(p->rank, p->err);
    memset(in, p->rank + 1, all * 8);
    tern_all_to_all_v(p->group, in, given, out, taken, TERN_I64, &p->err);
    RANK_CHECK_OK(p->rank, p->err);
    for (size_t i = 0, rank = 0, end = taken[0]; i < sum; i++) {
        while (i == end) end += taken[++rank];
        RANK_CHECK(p->rank, out[i] == (int64_t)((rank + 1) * UINT64_C(0x0101010101010101)));
    }
    free(out);
    return 0;
}

static int check_list(player *p, tern_dtype dtype, tern_reduce_op op, size_t count)
{
    size_t size = tern_dtype_bytes(dtype), second = count / 3, gap = draw(&p->own) % 300;
    char *one = memory_of(p, (count + second) * size + gap), *other = malloc(second * size + 1);
    RANK_CHECK_OK(p->rank, p->err);
    tern_span list[] = {{one, count}, {draw(&p->own) % 4 ? one + count * size + gap : other, second}};
    elements_put(dtype, list[0].data, p->rank, 0, count);
    elements_put(dtype, list[1].data, p->rank, 5, second);
    tern_all_reduce_coalesced(p->group, list, 2, dtype, op, &p->err);
    RANK_CHECK_OK(p->rank, p->err);
    elements_reduced(dtype, op, p->expected, p->world, 0, count);
    RANK_CHECK(p->rank, elements_match(dtype, list[0].data, p->expected, count));
    elements_reduced(dtype, op, p->expected, p->world, 5, second);
    RANK_CHECK(p->rank, elements_match(dtype, list[1].data, p->expected, second));
    free(other);
    return 0;
}

/* ---- random sequences ---- */

static int play(player *p, size_t most)
{
    tern_dtype dtype = dtypes[draw(&p->seed) % TERN__COUNT(dtypes)];
    tern_reduce_op op = (tern_reduce_op)(draw(&p->seed) % (TERN_BXOR + 1));
    size_t kind = draw(&p->seed) % 10, large = draw(&p->seed) % 8;
    size_t room = large ? TERN__MIN(most, (size_t)30000) : most;
    size_t count = 1 + draw(&p->seed) % (large == 7 ? 9 : room / 8 / (size_t)p->world);
    int root = (int)(draw(&p->seed) % (uint64_t)p->world);
    if (!element_has_op(dtype, op)) op = TERN_SUM;
    switch (kind) {
    case 0: return check_reduce(p, dtype, op, root, count);
    case 1: return check_reduce_scatter(p, dtype, op, count);
    case 2: return check_broadcast(p, dtype, root, count);
    case 3: return check_all_gather(p, dtype, count);
    case 4: return check_gather(p, dtype, root, count);
    case 5: return check_scatter(p, dtype, root, count);
    case 6: return check_all_to_all(p, dtype, count);
    case 7: return check_uneven(p, count);
    case 8: return check_list(p, dtype, op, count);
    default: return check_all_reduce(p, dtype, op, count);
    }
}

enum { MOST = 3 << 20 };

static int random_body(int rank, const tern__bootstrap *boot, void *arg)
{
    const uint64_t *seed = arg;
    tern_error err = {0};
    player p;
    tern_group *group = open_group(boot, &err);
    RANK_CHECK_OK(rank, err);
    elements_note_hosts(group);
    if (player_open(&p, group, rank, *seed, MOST + 64)) return 1;
    for (int i = 0; i < ROUNDS; i++) {
        if (!play(&p, MOST)) continue;
        fprintf(stderr, "rank %d of %d, seed %d, round %d\n", rank, p.world, (int)*seed, i);
        return 1;
    }
    player_close(&p);
    tern_group_close(group);
    return 0;
}

static void collectives_in_any_memory(void **state)
{
    (void)state;
    for (int world = 1; world <= 5; world += world < 3 ? 1 : 2)
        assert_ranks_ok(ranks_run(world, random_body, &(uint64_t){(uint64_t)world}));
}

static void collectives_in_any_memory_of_threads(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run_threads(3, random_body, &(uint64_t){17}));
}

/* Two groups with the same ranks, and two halves of them, each with an arena of its own. */
static int groups_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    player p[3];
    tern_group *world = open_group(boot, &err), *again = tern_group_split(world, 0, -rank, NULL, &err),
               *half = tern_group_split(world, rank % 2, 0, NULL, &err);
    RANK_CHECK_OK(rank, err);
    elements_note_hosts(world);
    if (player_open(&p[0], world, rank, 5, MOST) || player_open(&p[1], again, rank, 6, MOST) ||
        player_open(&p[2], half, rank, 7, MOST))
        return 1;
    for (int i = 0; i < ROUNDS / 4; i++)
        for (int g = 0; g < 2; g++)
            if (play(&p[g], 200000)) return 1;
    elements_note_hosts(half);
    for (int i = 0; i < ROUNDS / 4; i++)
        if (play(&p[2], 200000)) return 1;
    for (int g = 0; g < 3; g++) player_close(&p[g]);
    tern_group_close(world);
    tern_group_close(half);
    tern_group_close(again);
    return 0;
}

static void groups_have_arenas_of_their_own(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(4, groups_body, NULL));
}

/* ---- many works under way, large and small, in any memory ---- */

static int flight_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    enum { WORKS = 12, COUNT = 70001 };
    tern_error err = {0};
    tern_group *group = open_group(boot, &err);
    tern_group_mem_alloc(group, 1, &err);
    for (int round = 0; round < 6; round++) {
        int64_t *x[WORKS];
        tern_work *works[WORKS];
        size_t counts[WORKS];
        for (int w = 0; w < WORKS; w++) {
            bool is_plain = (w + rank + round) % 3 == 0;
            counts[w] = w % 2 ? COUNT - (size_t)w : (size_t)w + 1;
            x[w] = is_plain ? malloc(COUNT * 8) : tern_group_mem_alloc(group, COUNT * 8, &err);
            RANK_CHECK_OK(rank, err);
            for (size_t i = 0; i < counts[w]; i++) x[w][i] = (int64_t)i * (rank + 1) + w;
            works[w] = tern_all_reduce_post(group, x[w], counts[w], TERN_I64, TERN_SUM, &err);
        }
        for (int w = 0; w < WORKS; w++) {
            int64_t sum = boot->world * (boot->world + 1) / 2;
            tern_work_wait(works[w], &err);
            RANK_CHECK_OK(rank, err);
            for (size_t i = 0; i < counts[w]; i++)
                RANK_CHECK(rank, x[w][i] == (int64_t)i * sum + (int64_t)w * boot->world);
            (w + rank + round) % 3 == 0 ? free(x[w]) : tern_group_mem_free(group, x[w]);
        }
    }
    tern_group_close(group);
    return 0;
}

static void works_under_way(void **state)
{
    (void)state;
    for (int world = 2; world <= 3; world++) assert_ranks_ok(ranks_run(world, flight_body, NULL));
    assert_ranks_ok(ranks_run_threads(3, flight_body, NULL));
}

/* ---- allocating is no collective, and what is freed goes back ---- */

/* Returns the bytes of all memfds of this process. */
static size_t memfd_bytes(void)
{
    size_t bytes = 0;
    DIR *dir = opendir("/proc/self/fd");
    for (struct dirent *entry; (entry = readdir(dir));) {
        char path[300], name[64] = "";
        struct stat info;
        snprintf(path, sizeof(path), "/proc/self/fd/%s", entry->d_name);
        if (readlink(path, name, sizeof(name) - 1) < 0 || strncmp(name, "/memfd:tern", 11)) continue;
        if (!stat(path, &info)) bytes += (size_t)info.st_blocks * 512;
    }
    closedir(dir);
    return bytes;
}

/* Only rank 1 allocates after the first call, while the others are in a barrier. The debug back end has a
 * twin of each block. */
static int alone_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    const size_t bytes = 1 << 20;
    tern_error err = {0};
    tern_group *group = open_group(boot, &err);
    char *first = tern_group_mem_alloc(group, 1, &err), *mem[3];
    RANK_CHECK_OK(rank, err);
    size_t before = memfd_bytes(), each = bytes * (strstr(tern_group_backend(group), "debug") ? 2 : 1);
    if (rank == 1) {
        for (int i = 0; i < 3; i++) mem[i] = tern_group_mem_alloc(group, bytes, &err);
        RANK_CHECK_OK(rank, err);
        RANK_CHECK(rank, memfd_bytes() == before + 3 * each);
        memset(mem[1], 7, bytes);
        tern_group_mem_free(group, mem[1]);
        RANK_CHECK(rank, memfd_bytes() == before + 2 * each);
        char *again = tern_group_mem_alloc(group, bytes, &err);
        RANK_CHECK_OK(rank, err);
        RANK_CHECK(rank, again == mem[1] && !((uintptr_t)again & 4095));
        for (size_t i = 0; i < bytes; i++) RANK_CHECK(rank, again[i] == 0);
        tern_group_mem_free(group, again);
        tern_group_mem_free(group, mem[0]);
        again = tern_group_mem_alloc(group, 2 * bytes, &err); /* two gaps have become one */
        RANK_CHECK(rank, again == mem[0]);
        tern_group_mem_free(group, again);
        tern_group_mem_free(group, mem[2]);
        tern_group_mem_free(group, NULL);
        tern_group_mem_free(group, first);
        RANK_CHECK(rank, memfd_bytes() < before);
        for (int i = 0; i < PAIRS; i++) {
            char *at = tern_group_mem_alloc(group, 1 + (size_t)i % 9000, &err);
            RANK_CHECK_OK(rank, err);
            at[i % 9000] = 1;
            tern_group_mem_free(group, at);
        }
        RANK_CHECK(rank, memfd_bytes() < before);
    }
    tern_barrier(group, &err);
    RANK_CHECK_OK(rank, err);
    tern_group_close(group);
    return 0;
}

static void allocating_is_no_collective(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(3, alone_body, NULL));
}

/* Ordinary buffers go through the ring, so they take nothing of the arena, which may be full. */
static int full_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    enum { COUNT = 3000000 };
    tern_error err = {0};
    tern_group *group = open_group(boot, &err);
    float *x = calloc(COUNT, sizeof(float)),
          *shared = tern_group_mem_alloc(group, COUNT * sizeof(float), &err);
    RANK_CHECK_OK(rank, err);
    group->arena->bytes = group->arena->blocks[0].pages;
    RANK_CHECK(rank, !tern_group_mem_alloc(group, 1, &err) && err.code == TERN_E_MEMORY);
    err = (tern_error){0};
    size_t before = 0;
    for (int i = 0; i < 16; i++) {
        if (i == 8) before = memfd_bytes(); /* the ring has the pages that it needs from now on */
        float *data = rank == 0 && i % 2 ? shared : x;
        for (int j = 0; j < COUNT; j += 1000) data[j] = (float)(rank + i);
        tern_all_reduce(group, data, COUNT - (size_t)i * 1000, TERN_F32, TERN_MAX, &err);
        RANK_CHECK_OK(rank, err);
        for (int j = 0; j < COUNT - i * 1000; j += 1000)
            RANK_CHECK(rank, data[j] == (float)(boot->world - 1 + i));
    }
    RANK_CHECK(rank, memfd_bytes() == before);
    tern_barrier(group, &err);
    RANK_CHECK_OK(rank, err);
    free(x);
    tern_group_close(group);
    return 0;
}

static void ordinary_memory_takes_no_room(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(3, full_body, NULL));
}

/* ---- no room ---- */

/* A rank that gets no memory goes on with what it has. */
static int no_room_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    tern_group *group = open_group(boot, &err);
    float *x = tern_group_mem_alloc(group, 40, &err), *more = NULL;
    RANK_CHECK_OK(rank, err);
    if (rank == 0) {
        RANK_CHECK(rank, !tern_group_mem_alloc(group, SIZE_MAX - 5, &err) && err.code == TERN_E_MEMORY);
        err = (tern_error){0};
        RANK_CHECK(rank, !tern_group_mem_alloc(group, (size_t)1 << 50, &err) && err.code == TERN_E_MEMORY);
        RANK_CHECK(rank, strstr(err.text, "1125899906842624 bytes"));
        err = (tern_error){0};
        more = tern_group_mem_alloc(group, 40, &err);
        RANK_CHECK_OK(rank, err);
    }
    float *use = more ? more : x;
    for (int i = 0; i < 10; i++) use[i] = (float)(rank + i);
    tern_all_reduce(group, use, 10, TERN_F32, TERN_MAX, &err);
    RANK_CHECK_OK(rank, err);
    for (int i = 0; i < 10; i++) RANK_CHECK(rank, use[i] == (float)(boot->world - 1 + i));
    tern_group_close(group);
    return 0;
}

static void a_rank_without_room_goes_on(void **state)
{
    (void)state;
    for (int world = 1; world <= 3; world++) assert_ranks_ok(ranks_run(world, no_room_body, NULL));
}

/* The address space is no more than half of what a process may map. A sanitizer maps more. */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
static int limited_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    struct rlimit limit = {.rlim_cur = (rlim_t)2 << 30, .rlim_max = (rlim_t)2 << 30};
    RANK_CHECK(rank, !setrlimit(RLIMIT_AS, &limit));
    tern_group *group = open_group(boot, &err);
    int32_t *x = tern_group_mem_alloc(group, 4096, &err);
    RANK_CHECK_OK(rank, err);
    *x = rank;
    tern_all_reduce(group, x, 1, TERN_I32, TERN_SUM, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, *x == boot->world * (boot->world - 1) / 2);
    tern_group_close(group);
    return 0;
}

static void address_space_may_be_limited(void **state)
{
    (void)state;
    if (!getenv("TERN_TEST_HOSTS")) assert_ranks_ok(ranks_run(3, limited_body, NULL));
}
#endif

/* ---- memory that was freed ---- */

static int freed_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    tern_group *group = open_group(boot, &err);
    float *kept = tern_group_mem_alloc(group, 64, &err), *freed = tern_group_mem_alloc(group, 64, &err);
    if (freed) tern_group_mem_free(group, freed); /* a rank may be told here already */
    tern_all_reduce(group, rank == 1 ? freed : kept, 10, TERN_F32, TERN_SUM, &err);
    RANK_CHECK(rank, err.code == (rank == 1 ? TERN_E_INVALID : TERN_E_PEER));
    RANK_CHECK(rank, strstr(err.text, "in memory that tern_group_mem_free freed"));
    tern_group_close(group);
    return 0;
}

static void memory_that_was_freed_is_refused(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(3, freed_body, NULL));
}

/* ---- a forked child frees nothing of its parent's ---- */

static int fork_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    int status = -1;
    tern_error err = {0};
    tern_group *group = open_group(boot, &err);
    int32_t *x = tern_group_mem_alloc(group, 8192, &err);
    RANK_CHECK_OK(rank, err);
    x[2000] = 41 + rank;
    pid_t child = fork();
    if (child == 0) {
        tern_group_mem_free(group, x);
        tern_group_close(group);
        _exit(0);
    }
    RANK_CHECK(rank, waitpid(child, &status, 0) == child && status == 0);
    RANK_CHECK(rank, x[2000] == 41 + rank);
    tern_all_reduce(group, x + 2000, 1, TERN_I32, TERN_MAX, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, x[2000] == 40 + boot->world);
    tern_group_close(group);
    return 0;
}

static void a_forked_child_frees_nothing(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, fork_body, NULL));
}

/* ---- a rank dies while others use their memory ---- */

static int killed_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    enum { COUNT = 200000 };
    tern_error err = {0};
    tern_group *group = open_group(boot, &err);
    float *plain = calloc(COUNT, sizeof(float));
    tern_group_mem_alloc(group, 1, &err);
    for (int i = 0; !err.code; i++) {
        float *x = (i + rank) % 3 ? tern_group_mem_alloc(group, COUNT * sizeof(float), &err) : plain;
        if (rank == 1 && i == 20) raise(SIGKILL);
        if (!err.code) tern_all_reduce(group, x, COUNT, TERN_F32, TERN_SUM, &err);
        if (x != plain) tern_group_mem_free(group, x);
    }
    RANK_CHECK(rank, err.code == TERN_E_PEER && strstr(err.text, "rank 1 ("));
    RANK_CHECK(rank, !tern_group_mem_alloc(group, 1, &(tern_error){0}));
    tern_group_close(group);
    free(plain);
    return 0;
}

static void a_killed_rank_is_told(void **state)
{
    (void)state;
    ranks r = ranks_start(3, killed_body, NULL);
    ranks_wait(&r);
    assert_int_equal(r.status[1], 128 + SIGKILL);
    assert_int_equal(r.status[0], 0);
    assert_int_equal(r.status[2], 0);
}

/* ---- what is not placed is compared ---- */

/* Works in windows of tern's own have to be at the same offset on all ranks. */
static int compared_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    place p;
    if (place_open(&p, rank, boot, 4096)) return 1;
    tern__extent extent = {p.window, rank == 1 ? 64 : 0, 10};
    tern__post post = {.kind = TERN__ALL_REDUCE, .dtype = TERN_F32, .extents = &extent, .extent_count = 1};
    place_run(&p, &post);
    RANK_CHECK(rank, p.err.code == TERN_E_MISMATCH && strstr(p.err.text, "in different memory"));
    place_close(&p);
    return 0;
}

static void other_works_are_compared_with_their_offsets(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, compared_body, NULL));
    assert_ranks_ok(ranks_run(3, compared_body, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_in_any_memory),
        cmocka_unit_test(collectives_in_any_memory_of_threads),
        cmocka_unit_test(groups_have_arenas_of_their_own),
        cmocka_unit_test(works_under_way),
        cmocka_unit_test(allocating_is_no_collective),
        cmocka_unit_test(ordinary_memory_takes_no_room),
        cmocka_unit_test(a_rank_without_room_goes_on),
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
        cmocka_unit_test(address_space_may_be_limited),
#endif
        cmocka_unit_test(memory_that_was_freed_is_refused),
        cmocka_unit_test(a_forked_child_frees_nothing),
        cmocka_unit_test(a_killed_rank_is_told),
        cmocka_unit_test(other_works_are_compared_with_their_offsets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
