// State of a launch that is shared by its OS threads.
#pragma once
#include <atomic>
#include <condition_variable>
#include <mutex>

#include "abi.h"

namespace tf {

// Grid barrier for the OS threads of a resident launch.
class Rendezvous {
 public:
  // Waits until all `parties` have arrived; false if one of them has left.
  bool meet(int parties);
  // Breaks the barrier: this party will not arrive again.
  void leave();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int waiting_ = 0, round_ = 0;
  bool broken_ = false;
};

class Launch {
 public:
  explicit Launch(const tf_call& call);

  const tf_call& call;
  const unsigned long long blocks;
  Rendezvous grid_barrier;

  bool has(tf_flag flag) const { return (call.flags & flag) != 0; }
  // Coordinates of the i-th block to run in the launch's order.
  tf_dim3 block_at(unsigned long long i) const;
  // Coordinates and flags common to all threads of the launch.
  tf_thread thread_template() const;

  // Records an error; the first one is reported to the caller.
  void fail(const char* message, tf_failure failure = TF_BROKEN);
  bool failed() const { return failure() != TF_SUCCEEDED; }
  tf_failure failure() const { return failure_.load(std::memory_order_relaxed); }

 private:
  std::mutex mutex_;
  std::atomic<tf_failure> failure_{TF_SUCCEEDED};
};

}  // namespace tf
