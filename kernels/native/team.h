// Threads that help one another: units of work, each done once, by whoever is there first.
#pragma once
#include <atomic>
#include <cstdint>

// The caller goes on as soon as every unit is done. It never waits for a helper that has not begun
// one: on a busy machine it does most of them itself. Which thread does a unit is left to chance; a
// unit's result must not depend on it.
class Team {
 public:
  explicit Team(int size) : size_(size) {}

  int size() const { return size_; }

  // Every unit in [0, count), less than 2^31; all are done when it returns.
  template <class Work>
  void each(int64_t count, const Work& work) {
    if (size_ == 1 || count <= 1) {
      for (int64_t unit = 0; unit < count; unit++) work(unit);
      return;
    }
    share(count, [](const void* work, int64_t unit) { (*static_cast<const Work*>(work))(unit); },
          &work);
  }

  // Do one unit of what is shared; false when there is none to begin.
  bool help();

 private:
  using Call = void (*)(const void* work, int64_t unit);
  void share(int64_t count, Call call, const void* work);

  const int size_;
  // The number of the piece of work that is shared, above the next unit of it. While a piece is
  // exchanged for the next one the unit is kClosed, and nobody begins one.
  alignas(64) std::atomic<uint64_t> ticket_{kClosed};
  static constexpr uint64_t kClosed = 0xffffffffu;
  alignas(64) std::atomic<int64_t> done_{0};
  alignas(64) std::atomic<int64_t> count_{0};
  std::atomic<Call> call_{nullptr};
  std::atomic<const void*> work_{nullptr};
};

using Task = void (*)(void* argument, Team& team);

// Run a task on this thread, with up to `size` - 1 others to help it.
void run_with_helpers(int size, Task task, void* argument);
