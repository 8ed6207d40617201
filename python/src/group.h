/* group.h - a process group's world of tern: its memory, who may use it when, and the thread that moves
 * asynchronous works on. */
#pragma once

#include "compat.h"

#include <tern/collectives.h>
#include <tern/p2p.h>

#include <atomic>
#include <c10/util/FunctionRef.h>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unistd.h>

namespace torch_tern
{
class TernWork;
using WorkPtr = c10::intrusive_ptr<TernWork>;

/* Throws what PyTorch throws for a failure of a back end: DistBackendError, with tern's text. A time-out says so
 * in the words that PyTorch's own back ends use. */
[[noreturn]] void throw_error(const tern_error &err);

/* A family of tern belongs to one thread at a time. This lock hands it over in the order of the requests. A
 * thread that waits for peers holds it, so a request wakes that thread (tern_group_wake), which then gives way. */
class FamilyLock
{
  public:
    void lock();
    void unlock();
    /* The group to wake; nullptr once it is closed. */
    void watch(tern_group *group);

  private:
    std::mutex mutex_;
    std::condition_variable turn_;
    uint64_t next_ = 0, serving_ = 0;
    tern_group *group_ = nullptr;
};

class Group : public std::enable_shared_from_this<Group>
{
  public:
    /* Opens a world that meets in c10d's store. */
    static std::shared_ptr<Group> open(const c10::intrusive_ptr<c10d::Store> &store, int rank, int size,
                                       std::chrono::milliseconds timeout);
    ~Group();

    using Start = c10::function_ref<tern_work *(tern_group *, tern_error *)>;
    /* Starts a work of tern. Unless it is asynchronous it is done on return; its wait() throws its error. */
    void start(const WorkPtr &work, Start start, bool is_async);
    /* Waits for a work: false at the end of `timeout` (kNoTimeout: never). */
    bool wait(const WorkPtr &work, std::chrono::milliseconds timeout);
    /* Looks whether pending works are done. */
    void poll();
    /* Calls a blocking function of tern, and returns its error. */
    tern_error call(c10::function_ref<void(tern_group *, tern_error *)> function);

    /* Memory that the peers reach; nullptr if there is no room. It stays until the last block is freed, even
     * after close. */
    void *memory_new(size_t bytes);
    void memory_free(void *block);

    /* Finishes the pending works, gives up receives that no message has met and nobody waits for, and leaves the group.
     * After a wait that Ctrl-C has ended it ends the group. */
    void close();
    /* Ends the group for all ranks. */
    void abort(const char *why);
    /* Before Python ends: ends the threads of all groups. A thread that asks for Python's lock later, for the last
     * reference of a tensor, would end the process. Works that are still pending are moved on by who waits for them. */
    static void end_all_threads();

  private:
    using Clock = std::chrono::steady_clock;
    Group() = default;
    void thread_main();
    void thread_add();
    void threads_end();
    bool drive_begin(const WorkPtr &work, Clock::time_point until);
    bool drive_try();
    void drive_changed(bool is_end);
    void settle_all(const std::vector<WorkPtr> &done);
    void drive_finish(const std::vector<WorkPtr> &done);
    void drive_held(const WorkPtr &first, double seconds, std::vector<WorkPtr> *done);
    void drive(const WorkPtr &first, double seconds);
    void collect(std::vector<WorkPtr> *done);
    bool finish_if_over(const WorkPtr &work, int status, const tern_error &err);
    WorkPtr close_pending(std::vector<WorkPtr> *cancelled);
    void receives_cancel(std::vector<WorkPtr> *cancelled);
    void close_held();

    const int pid_ = getpid(); /* a forked child has neither the thread nor the peers */
    std::chrono::milliseconds timeout_ = c10d::kUnsetTimeout; /* of works that have none of their own */
    FamilyLock lock_;
    tern_group *group_ = nullptr;
    std::deque<WorkPtr> pending_;      /* started, and not done; the family's holder uses it */
    std::vector<tern_work *> awaited_; /* by the driver; the family's holder uses it */
    size_t blocks_ = 0;                /* of memory that are in use */
    bool closes_ = false;              /* nothing new is started */

    /* One thread drives the group: it waits in tern, for all works that are pending. The others wait for it. */
    std::mutex drive_mutex_;
    std::condition_variable drive_changes_;
    bool is_driven_ = false, stops_ = false;
    size_t async_pending_ = 0; /* works that a thread of the group is to drive if nobody else does */
    std::vector<std::thread>
        threads_;             /* one from the first asynchronous work on, and one more than callbacks hold */
    size_t idle_threads_ = 0; /* sleep until they are needed */
};

/* A collective or a message, as PyTorch sees it. */
class TernWork : public c10d::Work
{
  public:
    TernWork(std::shared_ptr<Group> group, int rank, c10d::OpType type, const char *title,
             std::vector<at::Tensor> inputs, std::vector<std::vector<at::Tensor>> outputs, int source = -1);
    bool isCompleted() override;
    bool isSuccess() const override;
    bool wait(std::chrono::milliseconds timeout) override;
    void synchronize() override;
    int sourceRank() const override;
    std::vector<at::Tensor> result() override;
    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
    void abort() override;
    /* Without `override`, since old versions do not have them. */
    uint64_t getSequencenumber() const;
    std::chrono::milliseconds getTimeout() const;

    /* For who starts the work: tensors that must live until it is done, and what is to be done then. */
    std::vector<at::Tensor> keep;
    std::function<void()> after;
    std::chrono::milliseconds timeout = c10d::kUnsetTimeout;
    uint64_t sequence = 0; /* the number of the call in its group */

  private:
    friend class Group;
    /* Without the family's lock: does `after`, and tells who waits and the future. */
    void settle();
    /* With the family held: what wait() throws. */
    void fail(const tern_error &err);
    bool is_receive() const;
    void future_set();
    bool is_settled() const;
    bool has_future() const;

    std::shared_ptr<Group> group_;
    tern_work *work_ = nullptr; /* NULL once it is done; the family's holder uses it */
    bool is_async_ = false;
    std::atomic<int> waiters_{0}; /* threads in Group::wait for it */
    std::atomic<bool> is_interrupted_{
        false}; /* Ctrl-C ended a wait for it; close() then does not wait either */
    std::exception_ptr failure_;
    int source_;
    std::vector<std::vector<at::Tensor>> outputs_;   /* one list, or one for each of the call's */
    c10::intrusive_ptr<c10::ivalue::Future> future_; /* with mutex_, as is the next one */
    bool is_future_set_ = false;
};
} // namespace torch_tern
