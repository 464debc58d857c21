// One launch, as all the OS threads that work on it see it.
#pragma once
#include <atomic>
#include <condition_variable>
#include <mutex>

#include "abi.h"

namespace tf {

// Lets the OS threads of a resident launch meet at CUDA's grid barrier.
class Rendezvous {
 public:
  // Waits until all `parties` are here; false if one of them has left, so that this cannot be.
  bool meet(int parties);
  // This party will not come again.
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
  // Coordinates of the block that is the i-th to run, by the launch's order.
  tf_dim3 block_at(unsigned long long i) const;
  // What every thread of the launch has in common.
  tf_thread thread_template() const;

  // Records an error; the first one is what the caller gets.
  void fail(const char* message, tf_failure failure = TF_BROKEN);
  bool failed() const { return failure() != TF_SUCCEEDED; }
  tf_failure failure() const { return failure_.load(std::memory_order_relaxed); }

 private:
  std::mutex mutex_;
  std::atomic<tf_failure> failure_{TF_SUCCEEDED};
};

}  // namespace tf
