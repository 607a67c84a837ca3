// Helpers that stay for the next call: awake for a moment, then asleep. Knows no operation.
#include "team.h"

#include <pthread.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace {

// One or two milliseconds: a step's sentinels, or what routes its rows, come between two calls.
constexpr int kAwakeSpins = 100000;
constexpr int kBusySpins = 200;

// Called again and again by who waits: with fewer free cores than threads, somebody needs this one.
void pause(int spins) {
  if (spins % kBusySpins == kBusySpins - 1) {
    std::this_thread::yield();
    return;
  }
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

bool Team::help() {
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  for (;;) {
    const uint64_t unit = ticket & kClosed;
    // What the next piece of work has is seen with the end of this ticket's, or not at all.
    const int64_t count = count_.load(std::memory_order_acquire);
    if (unit == kClosed || int64_t(unit) >= count) return false;
    const Call call = call_.load(std::memory_order_acquire);
    const void* work = work_.load(std::memory_order_acquire);
    // What was read above is of this ticket's piece of work, or the ticket is not there any more.
    if (ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel)) {
      call(work, int64_t(unit));
      done_.fetch_add(1, std::memory_order_release);
      return true;
    }
  }
}

void Team::share(int64_t count, Call call, const void* work) {
  const uint64_t piece = (ticket_.load(std::memory_order_relaxed) >> 32) + 1;
  done_.store(0, std::memory_order_relaxed);
  count_.store(count, std::memory_order_release);
  call_.store(call, std::memory_order_release);
  work_.store(work, std::memory_order_release);
  ticket_.store(piece << 32, std::memory_order_release);
  while (help()) {
  }
  for (int spins = 0; done_.load(std::memory_order_acquire) != count; spins++) pause(spins);
  ticket_.store(piece << 32 | kClosed, std::memory_order_release);
}

namespace {

class Crew {
 public:
  explicit Crew(int size) : size_(size), team_(size) {
    try {
      for (int i = 1; i < size; i++) threads_.emplace_back([this] { serve(); });
    } catch (const std::system_error&) {
      // No more threads are to be had. Nobody waits for a helper, so fewer do.
    }
  }

  ~Crew() {
    wake(kOver);
    for (std::thread& thread : threads_) thread.join();
  }

  int size() const { return size_; }

  void run(Task task, void* argument) {
    wake(kBusy);
    task(argument, team_);
    state_.store(kIdle, std::memory_order_release);
  }

 private:
  enum State { kIdle, kBusy, kOver };

  void wake(State state) {
    state_.store(state);
    if (asleep_.load() == 0) return;
    std::lock_guard<std::mutex> guard(mutex_);
    awake_.notify_all();
  }

  void serve() {
    for (int spins = 0;; spins++) {
      const State state = state_.load();
      if (state == kOver) return;
      if (state == kBusy) {
        if (team_.help()) spins = 0;
        else pause(spins);
      } else if (spins < kAwakeSpins) {
        pause(spins);
      } else {
        std::unique_lock<std::mutex> guard(mutex_);
        asleep_.fetch_add(1);
        awake_.wait(guard, [this] { return state_.load() != kIdle; });
        asleep_.fetch_sub(1);
        spins = 0;
      }
    }
  }

  const int size_;
  Team team_;
  std::atomic<State> state_{kIdle};
  std::atomic<int> asleep_{0};
  std::mutex mutex_;
  std::condition_variable awake_;
  std::vector<std::thread> threads_;
};

std::mutex turn;       // one call at a time
Crew* crew = nullptr;  // never destroyed: a process may end while its threads sleep

// A fork happens between calls. The child has no helpers, only what they waited on, in whatever
// state that was: it is left behind, and the next call makes others.
void before_fork() { turn.lock(); }
void in_parent() { turn.unlock(); }
void in_child() {
  crew = nullptr;
  turn.unlock();
}

}  // namespace

void run_with_helpers(int size, Task task, void* argument) {
  static const int is_told_of_forks = pthread_atfork(before_fork, in_parent, in_child);
  static_cast<void>(is_told_of_forks);
  std::lock_guard<std::mutex> guard(turn);
  if (crew == nullptr || crew->size() != size) {
    delete crew;
    crew = new Crew(size);
  }
  crew->run(task, argument);
}
