// Threads that wait for the next call, awake for a moment and then asleep. Knows no op.
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "team.h"

void Team::barrier() {
  if (size_ == 1) return;
  uint32_t round = round_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) == size_ - 1) {
    arrived_.store(0, std::memory_order_relaxed);
    next_.store(0, std::memory_order_relaxed);
    round_.store(round + 1, std::memory_order_release);
    return;
  }
  for (int spins = 0; round_.load(std::memory_order_acquire) == round; spins++) {
    // On a machine with fewer free cores than threads, the last one needs this core.
    if (spins < 2000) pause();
    else std::this_thread::yield();
  }
}

namespace {

constexpr int kAwakeSpins = 4000;

class Crew {
 public:
  explicit Crew(int size) : team_(size) {
    for (int i = 1; i < size; i++) threads_.emplace_back([this] { serve(); });
  }

  ~Crew() {
    {
      std::lock_guard<std::mutex> guard(mutex_);
      is_over_ = true;
      job_.fetch_add(1);
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  int size() const { return team_.size(); }

  void run(Work work, void* argument) {
    work_ = work;
    argument_ = argument;
    {
      std::lock_guard<std::mutex> guard(mutex_);
      job_.fetch_add(1, std::memory_order_release);
    }
    if (team_.size() > 1) wake_.notify_all();
    work(argument, team_);
    team_.barrier();
  }

 private:
  void serve() {
    uint32_t seen = 0;
    for (;;) {
      for (int i = 0; i < kAwakeSpins && job_.load(std::memory_order_acquire) == seen; i++) pause();
      if (job_.load(std::memory_order_acquire) == seen) {
        std::unique_lock<std::mutex> guard(mutex_);
        wake_.wait(guard, [&] { return job_.load(std::memory_order_acquire) != seen; });
      }
      if (is_over_) return;
      seen++;
      work_(argument_, team_);
      team_.barrier();
    }
  }

  Team team_;
  Work work_ = nullptr;
  void* argument_ = nullptr;
  bool is_over_ = false;
  std::atomic<uint32_t> job_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::thread> threads_;
};

}  // namespace

void run_together(int size, Work work, void* argument) {
  // One call at a time; the threads stay for the next one.
  static std::mutex turn;
  static Crew* crew = nullptr;  // never destroyed: threads may not be joined while a process exits
  std::lock_guard<std::mutex> guard(turn);
  if (crew == nullptr || crew->size() != size) {
    delete crew;
    crew = new Crew(size);
  }
  crew->run(work, argument);
}
