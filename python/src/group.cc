/* group.cc - who may use a process group's world of tern, and who moves its works on.
 *
 * One thread drives the group: it waits in tern for the first of the works that are pending, and tells who waits
 * for them. That is a thread that itself waits for a work, or else, while asynchronous works are pending, one of the
 * group's own. Other threads wait until their work is done, or until nobody drives any more. Whoever only
 * needs the family for a moment, to start a work, wakes the driver, which gives the family to the next in line and
 * comes again. So no thread keeps another one out, and none spins. */
#include "group.h"

#include "store.h"

#include <algorithm>
#include <cmath>
#include <pybind11/pybind11.h>
#include <tern/store.h>

namespace torch_tern
{
namespace
{
const int SLICE_MS = 100; /* of a wait, until it looks for Ctrl-C */

const std::thread::id main_thread = std::this_thread::get_id(); /* which imports the module */

/* Lets Python run the handlers of signals that have come: Ctrl-C throws. Only the main thread runs them. */
void check_signals()
{
    if (std::this_thread::get_id() != main_thread || !Py_IsInitialized()) return;
    pybind11::gil_scoped_acquire gil;
    if (PyErr_CheckSignals()) throw pybind11::error_already_set();
}

double seconds_of(std::chrono::milliseconds time)
{
    return std::chrono::duration<double>(time).count();
}
} // namespace

void throw_error(const tern_error &err)
{
    const char *words = err.code == TERN_E_TIMEOUT ? "Timed out " : "";
    TORCH_TERN_THROW(c10::str("tern: ", words, "(", tern_status_name(err.code), "): ", err.text));
}

/* ---- the lock ---- */

void FamilyLock::lock()
{
    std::unique_lock<std::mutex> lock(mutex_);
    const uint64_t own = next_++;
    if (own == serving_) return;
    tern_group_wake(group_);
    turn_.wait(lock, [&] { return own == serving_; });
}

void FamilyLock::unlock()
{
    bool has_next;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        has_next = ++serving_ != next_;
    }
    if (has_next) turn_.notify_all();
}

void FamilyLock::watch(tern_group *group)
{
    std::lock_guard<std::mutex> lock(mutex_);
    group_ = group;
}

using Hold = std::lock_guard<FamilyLock>; /* of the family */

/* ---- opening and closing ---- */

namespace
{
std::mutex groups_mutex;
std::vector<std::weak_ptr<Group>> groups; /* of this process; those that are gone are forgotten at the next opening */
} // namespace

std::shared_ptr<Group> Group::open(const c10::intrusive_ptr<c10d::Store> &store, int rank, int size,
                                   std::chrono::milliseconds timeout)
{
    tern_error err = {};
    std::shared_ptr<Group> group(new Group);
    tern_group_opts opts = tern_group_defaults();
    StoreHandle meeting(store);
    opts.store = meeting.get();
    opts.rank = rank;
    opts.world = size;
    opts.local_world = 0; /* the launcher's numbers are those of all its processes, not of this group's */
    opts.timeout_s = opts.connect_timeout_s = seconds_of(timeout);
    group->timeout_ = timeout;
    group->group_ = tern_group_open(&opts, &err);
    if (!group->group_) throw_error(err);
    group->lock_.watch(group->group_);
    std::lock_guard<std::mutex> lock(groups_mutex);
    groups.erase(std::remove_if(groups.begin(), groups.end(), [](const auto &one) { return one.expired(); }),
                 groups.end());
    groups.push_back(group);
    return group;
}

Group::~Group()
{
    try {
        close();
    } catch (const std::exception &) { /* a destructor has nobody to tell */
    }
}

/* A destructor may hold Python's lock, which a callback in one of the group's threads needs before that can end. */
void Group::close()
{
    if (getpid() != pid_) {
        for (std::thread &thread : threads_) thread.detach();
        threads_.clear();
        return;
    }
    std::unique_ptr<pybind11::gil_scoped_release> released;
    if (Py_IsInitialized() && PyGILState_Check()) released = std::make_unique<pybind11::gil_scoped_release>();
    std::vector<WorkPtr> cancelled;
    while (const WorkPtr work = close_pending(&cancelled)) wait(work, kNoTimeout);
    settle_all(cancelled);
    threads_end();
    Hold hold(lock_);
    close_held();
}

/* Returns a work that is to be waited for, or nullptr. Receives for which nobody waits come last: those that no message
 * has met by then are cancelled, since perhaps nobody ever sends to them. */
WorkPtr Group::close_pending(std::vector<WorkPtr> *cancelled)
{
    Hold hold(lock_);
    closes_ = true;
    for (const WorkPtr &work : pending_)
        if (work->is_interrupted_)
            tern_group_abort(group_, TERN_E_STATE, "the wait for a work was interrupted");
    for (const WorkPtr &work : pending_)
        if (!work->is_receive() || work->waiters_) return work;
    receives_cancel(cancelled);
    return pending_.empty() ? WorkPtr() : pending_.front();
}

/* With the family held. A later wait for a cancelled work throws. */
void Group::receives_cancel(std::vector<WorkPtr> *cancelled)
{
    tern_error err = {};
    err.code = TERN_E_STATE;
    snprintf(err.text, sizeof(err.text), "the process group was destroyed before a message had come");
    for (auto at = pending_.begin(); at != pending_.end();) {
        const WorkPtr work = *at;
        if (!tern_work_cancel(work->work_)) {
            ++at;
            continue;
        }
        work->work_ = nullptr;
        work->fail(err);
        cancelled->push_back(work);
        at = pending_.erase(at);
    }
    std::lock_guard<std::mutex> lock(drive_mutex_);
    async_pending_ =
        std::count_if(pending_.begin(), pending_.end(), [](const auto &one) { return one->is_async_; });
}

/* Tensors may outlive the process group, as gradients do that are views of DDP's buckets. */
void Group::close_held()
{
    if (!closes_ || blocks_) return;
    lock_.watch(nullptr);
    tern_group_close(group_);
    group_ = nullptr;
}

void Group::abort(const char *why)
{
    Hold hold(lock_);
    if (group_) tern_group_abort(group_, TERN_E_STATE, why);
}

/* ---- memory ---- */

void *Group::memory_new(size_t bytes)
{
    tern_error err = {};
    Hold hold(lock_);
    if (!group_ || closes_) return nullptr;
    void *block = tern_group_mem_alloc(group_, bytes, &err);
    if (!block && err.code != TERN_E_MEMORY) throw_error(err);
    if (block) blocks_++;
    return block;
}

/* A forked child leaves it to its parent, one of whose threads may have held the family when the child was made. */
void Group::memory_free(void *block)
{
    if (getpid() != pid_) return;
    Hold hold(lock_);
    tern_group_mem_free(group_, block);
    blocks_--;
    close_held();
}

/* ---- works ---- */

/* With the family held: notes the end of a work. What else there is to do then may take long or call in here
 * again, and is done by settle() without the family. */
bool Group::finish_if_over(const WorkPtr &work, int status, const tern_error &err)
{
    if (status == TERN_PENDING) return false;
    if (work->source_ == TERN_ANY_SOURCE && work->opType_ == c10d::OpType::RECVANYSOURCE && status == TERN_OK)
        work->source_ = tern_work_source(work->work_, nullptr);
    tern_error last = err;
    tern_work_wait(work->work_, err.code ? nullptr : &last);
    work->work_ = nullptr;
    if (last.code) work->fail(last);
    return true;
}

/* A synchronous call that may drive does so at once, with the family that it holds already. */
void Group::start(const WorkPtr &work, Start start, bool is_async)
{
    tern_error err = {};
    std::vector<WorkPtr> done;
    bool is_over, is_driver = false;
    work->is_async_ = is_async;
    {
        Hold hold(lock_);
        TORCH_CHECK(group_ && !closes_, "tern: the process group was destroyed");
        work->work_ = start(group_, &err);
        if (!work->work_) throw_error(err);
        if (work->timeout != timeout_ && work->timeout.count() > 0)
            tern_work_timeout_set(work->work_, seconds_of(work->timeout), &err);
        is_over = finish_if_over(work, tern_work_test(work->work_, &err), err);
        if (!is_over) pending_.push_back(work);
        if (!is_over && is_async) {
            std::lock_guard<std::mutex> lock(drive_mutex_);
            async_pending_++;
            if (threads_.empty()) thread_add();
        }
        if (!is_over && !is_async && (is_driver = drive_try())) drive_held(work, SLICE_MS * 1e-3, &done);
    }
    if (is_driver) drive_finish(done);
    if (is_over)
        work->settle();
    else if (is_async)
        drive_changes_.notify_all();
    else
        wait(work, kNoTimeout);
}

tern_error Group::call(c10::function_ref<void(tern_group *, tern_error *)> function)
{
    tern_error err = {};
    Hold hold(lock_);
    TORCH_CHECK(group_ && !closes_, "tern: the process group was destroyed");
    function(group_, &err);
    return err;
}

/* With the family held: takes the works that are over out of `pending_`. */
void Group::collect(std::vector<WorkPtr> *done)
{
    size_t async = 0;
    for (auto at = pending_.begin(); at != pending_.end();) {
        tern_error err = {};
        const int status = tern_work_test((*at)->work_, &err);
        if (!finish_if_over(*at, status, err)) {
            ++at;
            continue;
        }
        async += (*at)->is_async_;
        done->push_back(*at);
        at = pending_.erase(at);
    }
    if (!async) return;
    std::lock_guard<std::mutex> lock(drive_mutex_);
    async_pending_ -= async;
}

void Group::poll()
{
    std::vector<WorkPtr> done;
    {
        Hold hold(lock_);
        collect(&done);
    }
    settle_all(done);
}

/* ---- driving ---- */

/* Returns true if the caller is the driver now. False: its work is done, or the time is over. */
bool Group::drive_begin(const WorkPtr &work, Clock::time_point until)
{
    std::unique_lock<std::mutex> lock(drive_mutex_);
    drive_changes_.wait_until(lock, until, [&] { return !is_driven_ || work->is_settled(); });
    if (is_driven_ || work->is_settled()) return false;
    return is_driven_ = true;
}

/* Returns true if the caller is the driver now. False: somebody else is. */
bool Group::drive_try()
{
    std::lock_guard<std::mutex> lock(drive_mutex_);
    return !is_driven_ && (is_driven_ = true);
}

/* Locks so that no thread is just about to sleep. */
void Group::drive_changed(bool is_end)
{
    {
        std::lock_guard<std::mutex> lock(drive_mutex_);
        if (is_end) is_driven_ = false;
    }
    drive_changes_.notify_all();
}

/* What the driver does, with the family held: waits in tern for `first` and all other pending works, until one is
 * done or the family is wanted, for `seconds` at most. */
void Group::drive_held(const WorkPtr &first, double seconds, std::vector<WorkPtr> *done)
{
    tern_error err = {};
    collect(done);
    awaited_.clear();
    if (first && first->work_) awaited_.push_back(first->work_);
    for (const WorkPtr &work : pending_)
        if (work != first) awaited_.push_back(work->work_);
    if (!done->empty() || awaited_.empty()) return;
    tern_work_wait_any(awaited_.data(), awaited_.size(), seconds, nullptr, &err);
    collect(done);
}

/* Ends the caller's turn as the driver. Works are settled when another thread may drive, since a callback may wait
 * for a work of its own, or for the future of one, which needs a thread that drives. */
void Group::drive_finish(const std::vector<WorkPtr> &done)
{
    drive_changed(true);
    if (std::any_of(done.begin(), done.end(), [](const WorkPtr &work) { return work->has_future(); })) {
        std::lock_guard<std::mutex> lock(drive_mutex_);
        if (!idle_threads_) thread_add();
    }
    settle_all(done);
}

void Group::drive(const WorkPtr &first, double seconds)
{
    std::vector<WorkPtr> done;
    {
        Hold hold(lock_);
        drive_held(first, seconds, &done);
    }
    drive_finish(done);
}

void Group::settle_all(const std::vector<WorkPtr> &done)
{
    for (const WorkPtr &work : done) work->settle();
    if (!done.empty()) drive_changed(false);
}

/* Counts a thread that waits. */
struct Waiter {
    explicit Waiter(std::atomic<int> *count) : count_(count) { ++*count_; }
    ~Waiter() { --*count_; }
    std::atomic<int> *count_;
};

bool Group::wait(const WorkPtr &work, std::chrono::milliseconds timeout)
{
    const bool is_limited = timeout.count() > 0;
    const auto end = Clock::now() + timeout;
    const auto slice = std::chrono::milliseconds(SLICE_MS);
    work->is_interrupted_ = false;
    const Waiter counted(&work->waiters_);
    while (!work->is_settled()) {
        const auto now = Clock::now();
        if (is_limited && now >= end) return false;
        const auto until = is_limited ? std::min(now + slice, end) : now + slice;
        if (drive_begin(work, until))
            drive(work, std::chrono::duration<double>(until - Clock::now()).count());
        if (work->is_settled()) break;
        try {
            check_signals();
        } catch (...) {
            work->is_interrupted_ = true;
            throw;
        }
    }
    return true;
}

/* With drive_mutex_ held. */
void Group::thread_add()
{
    if (stops_) return;
    idle_threads_++;
    threads_.emplace_back([self = shared_from_this()] { self->thread_main(); });
}

void Group::thread_main()
{
    while (true) {
        {
            std::unique_lock<std::mutex> lock(drive_mutex_);
            drive_changes_.wait(lock, [this] { return stops_ || (async_pending_ && !is_driven_); });
            if (stops_) return;
            idle_threads_--;
            is_driven_ = true;
        }
        drive(WorkPtr(), SLICE_MS * 1e-3);
        std::lock_guard<std::mutex> lock(drive_mutex_);
        idle_threads_++;
    }
}

void Group::threads_end()
{
    std::vector<std::thread> ending;
    {
        std::lock_guard<std::mutex> lock(drive_mutex_);
        stops_ = true;
        ending.swap(threads_);
    }
    drive_changes_.notify_all();
    for (std::thread &thread : ending)
        if (thread.get_id() == std::this_thread::get_id())
            thread.detach();
        else
            thread.join();
}

void Group::end_all_threads()
{
    std::vector<std::weak_ptr<Group>> all;
    {
        std::lock_guard<std::mutex> lock(groups_mutex);
        all = groups;
    }
    for (const std::weak_ptr<Group> &one : all) {
        const std::shared_ptr<Group> group = one.lock();
        if (group && group->pid_ == getpid()) group->threads_end(); /* a forked child has its parent's groups, too */
    }
}

/* ---- a work ---- */

TernWork::TernWork(std::shared_ptr<Group> group, int rank, c10d::OpType type, const char *title,
                   std::vector<at::Tensor> inputs, std::vector<std::vector<at::Tensor>> outputs, int source)
    : Work(rank, type, title, std::move(inputs)), group_(std::move(group)), source_(source),
      outputs_(std::move(outputs))
{
}

/* Whoever comes last, the end of the work or the request for a future, completes the future. */
void TernWork::future_set()
{
    {
        std::lock_guard<std::mutex> lock(mutex_);
        if (!completed_ || !future_ || is_future_set_) return;
        is_future_set_ = true;
    }
    if (exception_)
        future_->setError(exception_);
    else if (outputs_.size() > 1)
        future_->markCompleted(c10::IValue(outputs_));
    else
        future_->markCompleted(c10::IValue(outputs_.empty() ? std::vector<at::Tensor>() : outputs_[0]));
}

void TernWork::fail(const tern_error &err)
{
    try {
        throw_error(err);
    } catch (...) {
        failure_ = std::current_exception();
    }
}

bool TernWork::is_receive() const
{
    return opType_ == c10d::OpType::RECV || opType_ == c10d::OpType::RECVANYSOURCE;
}

void TernWork::settle()
{
    if (!failure_ && after) {
        try {
            after();
        } catch (...) {
            failure_ = std::current_exception();
        }
    }
    after = nullptr;
    keep.clear();
    finish(failure_);
    future_set();
}

bool TernWork::has_future() const
{
    std::lock_guard<std::mutex> lock(mutex_);
    return static_cast<bool>(future_);
}

bool TernWork::is_settled() const
{
    std::lock_guard<std::mutex> lock(mutex_);
    return completed_;
}

bool TernWork::isCompleted()
{
    if (is_settled()) return true;
    group_->poll();
    return is_settled();
}

bool TernWork::isSuccess() const
{
    std::lock_guard<std::mutex> lock(mutex_);
    return completed_ && !exception_;
}

bool TernWork::wait(std::chrono::milliseconds limit)
{
    auto self = c10::intrusive_ptr<TernWork>::reclaim_copy(this);
    if (!group_->wait(self, limit)) TORCH_TERN_THROW("tern: Timed out: the work is not done");
    if (exception_) std::rethrow_exception(exception_);
    return true;
}

void TernWork::synchronize()
{
    wait(kNoTimeout);
}

int TernWork::sourceRank() const
{
    const bool is_received = opType_ == c10d::OpType::RECV || opType_ == c10d::OpType::RECVANYSOURCE;
    return is_received ? source_ : Work::sourceRank(); /* which refuses */
}

std::vector<at::Tensor> TernWork::result()
{
    TORCH_CHECK(isCompleted(),
                "Work needs to be completed before calling result(). Should call wait() before result().");
    std::vector<at::Tensor> flat;
    for (const auto &list : outputs_) flat.insert(flat.end(), list.begin(), list.end());
    return flat;
}

void TernWork::abort()
{
    group_->abort("a work was aborted");
}

uint64_t TernWork::getSequencenumber() const
{
    return sequence;
}

std::chrono::milliseconds TernWork::getTimeout() const
{
    return timeout;
}

c10::intrusive_ptr<c10::ivalue::Future> TernWork::getFuture()
{
    {
        std::lock_guard<std::mutex> lock(mutex_);
        c10::TypePtr type = c10::ListType::create(c10::TensorType::get());
        if (outputs_.size() > 1) type = c10::ListType::create(type);
        if (!future_) future_ = c10::make_intrusive<c10::ivalue::Future>(type);
    }
    future_set();
    return future_;
}
} // namespace torch_tern
