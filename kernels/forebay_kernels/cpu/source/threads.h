// A pool of threads for one step after another. Who waits spins for a moment, then sleeps: spinning alone would keep
// other processes off the CPUs, sleeping alone costs more than most phases of a step take.
#pragma once

#include <immintrin.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

namespace {

constexpr int MAX_THREADS = 256;
constexpr int SPINS = 1500;  // about 80 us where a pause takes 140 cycles

// A number that threads wait for to change.
struct Signal {
    std::atomic<uint32_t> value{0};
    std::atomic<int> num_sleeping{0};

    void wait_while(uint32_t old) {
        for (int i = 0; i < SPINS; i++) {
            if (value.load(std::memory_order_acquire) != old) return;
            _mm_pause();
        }
        num_sleeping.fetch_add(1);
        while (value.load() == old) syscall(SYS_futex, &value, FUTEX_WAIT_PRIVATE, old, nullptr, nullptr, 0);
        num_sleeping.fetch_sub(1);
    }

    void change() {
        value.fetch_add(1);
        if (num_sleeping.load() > 0) syscall(SYS_futex, &value, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
    }
};

class Pool {
  public:
    using Work = void (*)(void* context, int thread);

    // The calling thread is one of num_threads. Where the system gives fewer, the pool is smaller.
    explicit Pool(int num_threads) {
        const int wanted = num_threads < 1 ? 1 : num_threads > MAX_THREADS ? MAX_THREADS : num_threads;
        size_ = 1;
        sigset_t all, before;  // signals are for the caller's threads
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        for (int i = 1; i < wanted; i++) {
            starts_[i] = {this, i};
            if (pthread_create(&threads_[i], nullptr, enter, &starts_[i]) != 0) break;
            size_ = i + 1;
        }
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }

    ~Pool() {
        is_ending_ = true;
        start_.change();
        for (int i = 1; i < size_; i++) pthread_join(threads_[i], nullptr);
    }

    int size() const { return size_; }

    // Call work once in every thread; returns when all are done.
    void run(Work work, void* context) {
        work_ = work;
        context_ = context;
        start_.change();
        work(context, 0);
        barrier();
    }

    // Wait until all threads are here. All items of `next` are there again.
    void barrier() {
        const uint32_t round = round_.value.load(std::memory_order_acquire);
        if (arrived_.fetch_add(1) == size_ - 1) {
            arrived_ = 0;
            for (int i = 0; i < size_; i++) shares_[i].taken.store(0, std::memory_order_relaxed);
            round_.change();
        } else {
            round_.wait_while(round);
        }
    }

    // One of `count` items that no thread has taken since the last barrier, -1: there is none. Each thread has a share of
    // its own, from one end to the other, so that it reads what lies together and finds what it wrote; then it helps out.
    int next(int thread, int count) {
        for (int i = 0; i < size_; i++) {
            const int owner = thread + i < size_ ? thread + i : thread + i - size_;
            const int first = (int)((int64_t)count * owner / size_), end = (int)((int64_t)count * (owner + 1) / size_);
            std::atomic<int>& taken = shares_[owner].taken;
            if (taken.load(std::memory_order_relaxed) >= end - first) continue;
            const int item = first + taken.fetch_add(1, std::memory_order_relaxed);
            if (item < end) return item;
        }
        return -1;
    }

  private:
    struct alignas(64) Share {
        std::atomic<int> taken{0};
    };
    struct Start {
        Pool* pool;
        int thread;
    };

    static void* enter(void* argument) {
        auto* start = static_cast<Start*>(argument);
        Pool& pool = *start->pool;
        for (uint32_t seen = 0;; seen++) {
            pool.start_.wait_while(seen);
            if (pool.is_ending_) return nullptr;
            pool.work_(pool.context_, start->thread);
            pool.barrier();
        }
    }

    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) Signal round_;
    alignas(64) Signal start_;
    Work work_ = nullptr;
    void* context_ = nullptr;
    int size_ = 1;
    std::atomic<bool> is_ending_{false};
    Share shares_[MAX_THREADS];
    Start starts_[MAX_THREADS];
    pthread_t threads_[MAX_THREADS];
};

}  // namespace
