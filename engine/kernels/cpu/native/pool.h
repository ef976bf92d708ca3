// Threads that work through the phases of a step together, and through a busy machine alone.
//
// A phase is a number of chunks. Each thread has a share of them, claimed one by one from its front,
// and takes from the others' shares when its own is done. A phase is over when all chunks are done,
// not when all threads have arrived: one that the system has taken off its core in between chunks
// holds nobody up, and it skips what was done without it. Who waits spins for some microseconds and
// then sleeps (futex), so that a thread that shares its core lets the other one on.
//
// Every claim carries the step's number, so a thread that comes late from an earlier step can claim
// nothing and leaves. Which thread does a chunk never changes its result.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#define BATON_PAUSE() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define BATON_PAUSE() asm volatile("yield")
#else
#define BATON_PAUSE() std::atomic_signal_fence(std::memory_order_seq_cst)
#endif

constexpr int SPINS = 1000;        // within a step: about 20 us
constexpr int IDLE_SPINS = 2000;   // between two steps

struct Pool;

// What the threads run; `step` calls pool.phase for one phase after the other. The number's lowest
// bit is what `run` was asked for.
struct Work {
  virtual void step(Pool &pool, int thread, uint32_t number) = 0;
  virtual ~Work() = default;
};

struct Pool {
  const int threads;

  Pool(Work &work, int threads, int phases)
      : threads(threads),
        work_(work),
        owner_(getpid()),
        claims_(new Line[(size_t)phases * threads]),
        done_(new Line[phases]) {
    for (int t = 1; t < threads; t++) helpers_.emplace_back([this, t] { help(t); });
  }

  ~Pool() {
    stop_ = true;
    number_.fetch_add(1);
    wake();
    for (auto &helper : helpers_) helper.join();
  }

  // After a fork the helpers exist only in the parent; a child must not wait for them.
  bool orphaned() const { return getpid() != owner_; }

  // The caller's side of a step of phases first..end - 1; returns when all of it is done. What the
  // step reads must be in place before.
  void run(bool which, int first, int end) {
    uint32_t number = ((number_.load() | 1) + 1) | which;
    uint64_t fresh = (uint64_t)number << 32;
    for (int i = first * threads; i < end * threads; i++)
      claims_[i].value.store(fresh, std::memory_order_relaxed);
    for (int i = first; i < end; i++) done_[i].value.store(fresh, std::memory_order_relaxed);
    number_.store(number);
    wake();
    work_.step(*this, 0, number);
  }

  // Chunks 0..total - 1 of a phase by `chunk(i)`, then `meanwhile()` before others are waited for.
  // False when the step has ended without us.
  template <typename Chunk, typename Meanwhile>
  bool phase(int index, int total, int thread, uint32_t number, Chunk chunk, Meanwhile meanwhile) {
    int mine = 0;
    for (int turn = 0; turn < threads; turn++) {
      int share = (thread + turn) % threads;
      int first = front(total, share), end = front(total, share + 1);
      int next = first;
      while ((next = claim(index, share, number, first, end)) >= 0) {
        chunk(next);
        mine++;
      }
      if (next == GONE) return false;
    }
    meanwhile();
    return finish(index, total, number, mine);
  }

  // The first chunk of a thread's own share.
  int front(int total, int thread) const { return (int)((int64_t)total * thread / threads); }

 private:
  struct alignas(64) Line {
    std::atomic<uint64_t> value{0};  // step's number << 32 | count
  };
  static constexpr int EMPTY = -1, GONE = -2;

  int claim(int index, int share, uint32_t number, int first, int end) {
    auto &value = claims_[(size_t)index * threads + share].value;
    uint64_t seen = value.load();
    while (true) {
      if (seen >> 32 != number) return GONE;
      if (first + (int)(uint32_t)seen >= end) return EMPTY;
      if (value.compare_exchange_weak(seen, seen + 1)) return first + (int)(uint32_t)seen;
    }
  }

  bool finish(int index, int total, uint32_t number, int mine) {
    auto &value = done_[index].value;
    uint64_t whole = (uint64_t)number << 32 | (uint32_t)total;
    // our own chunks keep the phase open, so with some the number is still ours
    if (mine && value.fetch_add(mine) + mine == whole) {
      wake();
      return true;
    }
    wait(SPINS, [&] { return value.load() == whole || value.load() >> 32 != number; });
    return value.load() >> 32 == number;
  }

  void help(int thread) {
    uint32_t last = 0;
    while (true) {
      wait(IDLE_SPINS, [&] { return number_.load() != last; });
      last = number_.load();
      if (stop_) return;
      work_.step(*this, thread, last);
    }
  }

  template <typename Ready>
  void wait(int spins, Ready ready) {
    for (int i = 0; i < spins; i++) {
      if (ready()) return;
      BATON_PAUSE();
    }
    sleepers_.fetch_add(1);
    while (true) {
      uint32_t seen = event_.load();
      if (ready()) break;
      syscall(SYS_futex, &event_, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
    }
    sleepers_.fetch_sub(1);
  }

  // Sequentially consistent on both sides: either we see the sleeper or it sees what changed.
  void wake() {
    if (sleepers_.load() == 0) return;
    event_.fetch_add(1);
    syscall(SYS_futex, &event_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
  }

  Work &work_;
  const pid_t owner_;
  std::unique_ptr<Line[]> claims_, done_;
  alignas(64) std::atomic<uint32_t> number_{0};
  alignas(64) std::atomic<uint32_t> event_{0};
  alignas(64) std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> helpers_;
};
