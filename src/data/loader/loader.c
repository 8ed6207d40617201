/* loader.c - fetches batches ahead of their use.
 *
 * A batch lives in a slot, and a slot is FREE, FETCHING, READY or HELD. A reader claims the next batch number
 * and a FREE slot, fills the slot, and makes it READY. The caller takes batches in the order of their numbers
 * and holds each until its slot is released. Batches are claimed in order, so the one that the caller waits
 * for always has a slot, unless the caller holds them all, which is an error. Readers stop at the end of a
 * pass: the loader asks the sampler for the next pass's order when the caller asks for its first batch.
 * Without workers the caller is the only reader; it claims and fills one slot at a time. One lock guards the
 * slots' states, the counters, and which readers have ended. The contents of a slot belong to the thread that
 * put it into its state.
 *
 * Reader w of W reads its own part of a stream, which makes the batches w, w + W, w + 2 W .. ; the numbers of
 * a part that has ended are skipped. A reader may claim only as far ahead of the caller as there are slots
 * that are not held, so here too the batch that the caller waits for has a slot.
 *
 * A copy to a device (device_copy.c) may still be reading a FREE slot: the next reader of the slot waits for
 * it. */
#include "data/loader/loader_inner.h"

#include <time.h>
#include <unistd.h>

/* ---- fetching ---- */

/* Prefers a slot that no copy reads, then the one whose copy was started first. Locked. */
static tern__loader_slot *free_slot(const tern_loader *loader)
{
    tern__loader_slot *found = NULL;
    for (int i = 0; i < loader->slot_count; i++) {
        tern__loader_slot *slot = &loader->slots[i];
        if (slot->state == TERN__FREE && (!found || slot->copy_number < found->copy_number)) found = slot;
    }
    return found;
}

static int held_count(const tern_loader *loader)
{
    int held = 0;
    for (int i = 0; i < loader->slot_count; i++) held += loader->slots[i].state == TERN__HELD;
    return held;
}

/* Sets the number and size of the batch that the reader fetches next. Returns false if there is none now. */
static bool claim_number(tern_loader *loader, tern__reader *reader, tern__batch *batch)
{
    int64_t size = loader->opts.batch_size;
    if (loader->stream) {
        int64_t end = loader->next_taken + loader->slot_count - held_count(loader);
        if (!loader->flowing || reader->ended || reader->next >= end) return false;
        batch->index = reader->next;
        reader->next += loader->reader_count;
        return true;
    }
    if (loader->next_claimed >= loader->pass_batches) return false;
    batch->index = loader->next_claimed++;
    batch->count =
        TERN__MIN(tern_sampler_length(loader->sampler) - loader->shift - batch->index * size, size);
    return true;
}

/* Returns a FETCHING slot with the next batch's number, or NULL if no number or no slot is free. Locked. */
static tern__loader_slot *claim(tern_loader *loader, tern__reader *reader)
{
    tern__loader_slot *slot = free_slot(loader);
    if (!slot || !claim_number(loader, reader, &slot->batch)) return NULL;
    slot->state = TERN__FETCHING;
    return slot;
}

/* A filled slot becomes READY, or FREE if it is a stream's last batch and turned out empty. Locked. */
static void deliver(tern_loader *loader, tern__reader *reader, tern__loader_slot *slot, bool more)
{
    bool nothing = loader->stream && slot->batch.count == 0 && !tern__is_set(&slot->error);
    slot->state = nothing ? TERN__FREE : TERN__READY;
    reader->ended = !more;
    loader->idle_since = 0;
    pthread_cond_signal(&loader->ready);
}

void *tern__loader_work(void *arg)
{
    tern__reader *reader = arg;
    tern_loader *loader = reader->loader;
    pthread_mutex_lock(&loader->lock);
    while (!atomic_load(&loader->stopping)) {
        tern__loader_slot *slot = claim(loader, reader);
        if (!slot) {
            pthread_cond_wait(&loader->claimable, &loader->lock);
            continue;
        }
        pthread_mutex_unlock(&loader->lock);
        bool more = tern__loader_fetch(reader, slot);
        pthread_mutex_lock(&loader->lock);
        deliver(loader, reader, slot, more);
    }
    pthread_mutex_unlock(&loader->lock);
    return NULL;
}

/* ---- a pass ---- */

int64_t tern__loader_batches(const tern_loader *loader, int64_t samples)
{
    int64_t size = loader->opts.batch_size;
    return samples / size + (!loader->opts.drop_last && samples % size);
}

/* Each reader starts at the first of its batch numbers that the pass has not passed yet. Locked. */
static void readers_start(tern_loader *loader)
{
    for (int w = 0; w < loader->reader_count; w++) {
        int64_t behind = (loader->next_taken - w + loader->reader_count - 1) / loader->reader_count;
        tern__reader *reader = &loader->readers[w];
        reader->skip = behind * loader->opts.batch_size;
        reader->next = w + behind * loader->reader_count;
        reader->ended = false;
    }
    loader->flowing = loader->stream;
}

/* A pass that resumes at sample `start` numbers its batches as if it had begun with batches of this size. */
static int pass_start(tern_loader *loader, tern_error *err)
{
    int status = tern_sampler_indices(loader->sampler, loader->indices, err);
    if (status) return status;
    int64_t size = loader->opts.batch_size;
    loader->epoch = tern_sampler_epoch_get(loader->sampler);
    loader->running = true;
    pthread_mutex_lock(&loader->lock);
    loader->shift = loader->stream ? 0 : loader->start % size;
    loader->pass_batches = tern__loader_batches(loader, tern_sampler_length(loader->sampler) - loader->shift);
    loader->next_taken = loader->start / size;
    loader->next_claimed = loader->next_taken;
    loader->start = 0;
    readers_start(loader);
    pthread_cond_broadcast(&loader->claimable);
    pthread_mutex_unlock(&loader->lock);
    return TERN_OK;
}

/* Locked. */
static void slot_free(const tern_loader *loader, tern__loader_slot *slot)
{
    tern__slot_release_copy(loader, slot);
    slot->state = TERN__FREE;
}

/* Names the calls that the workers are in. Locked; unlocked while it logs. */
static void name_calls(tern_loader *loader)
{
    pthread_mutex_unlock(&loader->lock);
    for (int w = 0; w < loader->reader_count; w++)
        tern__dataset_call_name(&loader->readers[w].call, loader->patience_s);
    pthread_mutex_lock(&loader->lock);
}

/* The patience counts from the first wait for a batch, however many waits with an end of their own follow. */
void tern__loader_await_worker(tern_loader *loader, int64_t until)
{
    if (!loader->idle_since) loader->idle_since = tern__now_ns();
    int64_t due = loader->idle_since + (int64_t)(1e9 * loader->patience_s), end = TERN__MIN(due, until);
    const struct timespec time = {.tv_sec = end / 1000000000, .tv_nsec = end % 1000000000};
    if (!pthread_cond_clockwait(&loader->ready, &loader->lock, CLOCK_MONOTONIC, &time)) return;
    if (end < due) return;
    loader->idle_since = 0;
    name_calls(loader);
}

/* Stops fetching and drops what was fetched ahead. */
static void pass_stop(tern_loader *loader)
{
    pthread_mutex_lock(&loader->lock);
    loader->next_claimed = loader->pass_batches;
    loader->flowing = false;
    while (tern__loader_slot_in(loader, TERN__FETCHING)) tern__loader_await_worker(loader, INT64_MAX);
    for (int i = 0; i < loader->slot_count; i++)
        if (loader->slots[i].state == TERN__READY) slot_free(loader, &loader->slots[i]);
    for (int w = 0; w < loader->reader_count; w++) tern__reader_close(&loader->readers[w]);
    pthread_mutex_unlock(&loader->lock);
    loader->running = false;
}

/* ---- taking ---- */

static bool all_ended(const tern_loader *loader)
{
    for (int w = 0; w < loader->reader_count; w++)
        if (!loader->readers[w].ended) return false;
    return true;
}

/* No batch is left in this pass. Locked. */
static bool loader_is_over(const tern_loader *loader)
{
    if (!loader->stream) return loader->next_taken == loader->pass_batches;
    return all_ended(loader) && !tern__loader_slot_in(loader, TERN__READY);
}

static void fetch_here(tern_loader *loader)
{
    tern__reader *reader = &loader->readers[0];
    if (!loader->watch.call) tern__dataset_watch_start(&loader->watch, &reader->call, loader->patience_s);
    tern__loader_slot *slot = claim(loader, reader);
    deliver(loader, reader, slot, tern__loader_fetch(reader, slot));
}

/* Waits until the next batch's slot is filled, by a worker or here, the pass is over, or the clock has
 * reached `until`; returns false if it was the clock. Locked; at least one slot is not held. */
static bool await_next(tern_loader *loader, int64_t until)
{
    int64_t started = tern__now_ns();
    while (!tern__loader_slot_of(loader, loader->next_taken) && !loader_is_over(loader)) {
        if (tern__loader_is_skipped(loader, loader->next_taken)) {
            loader->next_taken++;
            pthread_cond_broadcast(&loader->claimable);
        } else if (loader->worker_count == 0)
            fetch_here(loader);
        else if (tern__now_ns() < until)
            tern__loader_await_worker(loader, until);
        else
            break;
    }
    loader->waited_ns += tern__now_ns() - started;
    return tern__loader_slot_of(loader, loader->next_taken) || loader_is_over(loader);
}

/* Hands the slot's batch to the caller: the slot becomes HELD, or FREE if fetching failed. Locked. */
static int loader_take(tern_loader *loader, tern__loader_slot *slot, tern__batch *out, tern_error *err)
{
    loader->next_taken++;
    if (tern__is_set(&slot->error)) {
        slot->state = TERN__FREE;
        pthread_cond_broadcast(&loader->claimable);
        if (err) *err = slot->error;
        return slot->error.code;
    }
    slot->state = TERN__HELD;
    *out = slot->batch;
    return 1;
}

/* As tern__loader_next within a pass. Locked. */
static int next_of_pass(tern_loader *loader, tern__batch *out, tern_error *err)
{
    if (loader_is_over(loader)) return 0;
    if (held_count(loader) == loader->slot_count)
        return tern__error_set(
            err, "tern_loader_next", TERN_E_STATE,
            "all %d batches that the loader has room for are held: end the scope that holds them, or raise "
            "prefetch from %d",
            loader->slot_count, loader->opts.prefetch);
    await_next(loader, INT64_MAX);
    tern__loader_slot *slot = tern__loader_slot_of(loader, loader->next_taken);
    return slot ? loader_take(loader, slot, out, err) : 0;
}

/* Starts a pass unless one is running. */
static int enter_pass(tern_loader *loader, const char *func, tern_error *err)
{
    if (tern__is_set(err)) return err->code;
    if (!loader) return tern__error_set(err, func, TERN_E_INVALID, "the loader is NULL");
    if (tern__loader_is_forked(loader))
        return tern__error_set(err, func, TERN_E_FORKED,
                               "the loader belongs to process %d, this is its forked child %d: make a loader "
                               "here",
                               (int)loader->pid, (int)getpid());
    return loader->running ? TERN_OK : pass_start(loader, err);
}

/* The clock ends before a time-out of centuries does. */
static int64_t clock_in(double seconds)
{
    const double most = 1e9;
    return tern__now_ns() + (int64_t)(1e9 * TERN__MIN(seconds, most));
}

int tern_loader_wait(tern_loader *loader, double timeout_s, tern_error *err)
{
    if (!tern__is_set(err) && !(timeout_s >= 0))
        return tern__error_set(err, __func__, TERN_E_RANGE, "timeout_s is %g, expected at least 0",
                               timeout_s);
    int status = enter_pass(loader, __func__, err);
    if (status || loader->worker_count == 0) return status ? status : 1;
    pthread_mutex_lock(&loader->lock);
    bool is_full = held_count(loader) == loader->slot_count; /* then tern_loader_next fails at once */
    bool is_ready = is_full || await_next(loader, clock_in(timeout_s));
    pthread_mutex_unlock(&loader->lock);
    return is_ready;
}

int tern__loader_next(tern_loader *loader, tern__batch *out, tern_error *err)
{
    int status = enter_pass(loader, "tern_loader_next", err);
    if (status) return status;
    pthread_mutex_lock(&loader->lock);
    status = next_of_pass(loader, out, err);
    pthread_mutex_unlock(&loader->lock);
    if (status == 0) {
        pass_stop(loader);
        tern_sampler_epoch_set(loader->sampler, tern_sampler_epoch_get(loader->sampler) + 1);
    }
    return status;
}

int tern__loader_room(const tern_loader *loader)
{
    return loader ? loader->slot_count : 0;
}

bool tern__loader_is_forked(const tern_loader *loader)
{
    return loader->pid != getpid();
}

void tern__loader_destroy(tern_loader *loader)
{
    pthread_cond_destroy(&loader->claimable);
    pthread_cond_destroy(&loader->ready);
    pthread_mutex_destroy(&loader->lock);
    tern__device_copier_free(loader);
    tern__loader_memory_free(loader);
}

void tern__loader_memory_free(tern_loader *loader)
{
    tern_sampler_free(loader->own_sampler);
    tern__free(loader->indices);
    tern__free(loader->slots);
    tern__free(loader->x);
    tern__free(loader->y);
    tern__free(loader->readers);
    tern__free(loader);
}

void tern__loader_slot_release(tern_loader *loader, int slot)
{
    if (tern__loader_is_forked(loader)) return;
    pthread_mutex_lock(&loader->lock);
    slot_free(loader, &loader->slots[slot]);
    bool last = loader->abandoned && !tern__loader_slot_in(loader, TERN__HELD);
    pthread_cond_broadcast(&loader->claimable);
    pthread_mutex_unlock(&loader->lock);
    if (last) tern__loader_destroy(loader);
}

/* ---- position ---- */

tern__loader_place tern__loader_place_get(const tern_loader *loader)
{
    int64_t taken = loader->next_taken * loader->opts.batch_size + loader->shift;
    if (!loader->stream) taken = TERN__MIN(taken, tern_sampler_length(loader->sampler));
    if (loader->running) return (tern__loader_place){loader->epoch, taken};
    return (tern__loader_place){tern_sampler_epoch_get(loader->sampler), loader->start};
}

void tern__loader_place_set(tern_loader *loader, tern__loader_place place)
{
    if (loader->running) pass_stop(loader);
    loader->start = place.samples;
    if (!loader->stream) loader->start = TERN__MIN(loader->start, tern_sampler_length(loader->sampler));
    tern_sampler_epoch_set(loader->sampler, place.epoch);
}

tern_sampler *tern__loader_sampler(const tern_loader *loader)
{
    return loader->sampler;
}

const tern_dataset *tern__loader_dataset(const tern_loader *loader)
{
    return loader->dataset;
}

double tern_loader_waited(const tern_loader *loader)
{
    return loader ? 1e-9 * (double)loader->waited_ns : 0;
}

int64_t tern_loader_length(const tern_loader *loader)
{
    return loader ? loader->batches : 0;
}

/* ---- slots by state or batch number ---- */

tern__loader_slot *tern__loader_slot_in(const tern_loader *loader, tern__slot_state state)
{
    for (int i = 0; i < loader->slot_count; i++)
        if (loader->slots[i].state == state) return &loader->slots[i];
    return NULL;
}

tern__loader_slot *tern__loader_slot_of(const tern_loader *loader, int64_t index)
{
    for (int i = 0; i < loader->slot_count; i++)
        if (loader->slots[i].state == TERN__READY && loader->slots[i].batch.index == index)
            return &loader->slots[i];
    return NULL;
}

bool tern__loader_is_skipped(const tern_loader *loader, int64_t index)
{
    return loader->stream && loader->readers[index % loader->reader_count].ended;
}
