// Scheduling of fibers, and detection of deadlock.
#include "text.h"
#include "worker.h"

namespace tf {

void Worker::switch_to(Fiber* next) {
  Fiber* const from = current_;
  StackHooks& from_hooks = from ? from->hooks : home_hooks_;
  from_hooks.leave(next ? next->hooks : home_hooks_);
  current_ = next;
  tf_self = next ? &next->self : nullptr;
  Context::swap(from ? from->context : home_, next ? next->context : home_);
  from_hooks.arrive();
}

// Switches to another ready fiber; called by a fiber that has just parked or ended.
void Worker::yield() {
  Fiber* const from = current_;
  Block& block = *from->block;
  Fiber* next = pick(block, from->linear / 32);
  if (!next && live_ > 1) next = pick_anywhere();
  if (next != from) switch_to(next);
}

unsigned Worker::random() {
  random_state_ ^= random_state_ << 13;
  random_state_ ^= random_state_ >> 17;
  return random_state_ ^= random_state_ << 5;
}

// Picks a ready thread of `block`, searching from `first_warp` on; null if there is none.
Fiber* Worker::pick(Block& block, size_t first_warp) {
  const int order = launch_->call.order;
  const size_t warps = block.warps.size();
  if (order == TF_RANDOM) first_warp = random() % warps;
  size_t w = first_warp;
  for (size_t i = 0; i < warps; ++i) {
    unsigned ready = block.warps[w].ready;
    if (ready) {
      unsigned lane = __builtin_ctz(ready);
      if (order == TF_REVERSE) lane = 31 - __builtin_clz(ready);
      if (order == TF_RANDOM) {
        for (unsigned skip = random() % __builtin_popcount(ready); skip; --skip) ready &= ready - 1;
        lane = __builtin_ctz(ready);
      }
      return block.fibers[w * 32 + lane].get();
    }
    if (order == TF_REVERSE) {
      w = w == 0 ? warps - 1 : w - 1;
    } else {
      w = w + 1 == warps ? 0 : w + 1;
    }
  }
  return nullptr;
}

Fiber* Worker::pick_anywhere() {
  const bool reverse = launch_->call.order == TF_REVERSE;
  for (size_t i = 0; i < live_; ++i) {
    turn_ = (turn_ + (reverse ? live_ - 1 : 1)) % live_;
    Block& block = *blocks_[turn_];
    if (Fiber* next = pick(block, reverse ? block.warps.size() - 1 : 0)) return next;
  }
  return nullptr;
}

// Runs the started blocks until all their threads are done, or the launch has failed.
void Worker::run_to_end() {
  turn_ = launch_->call.order == TF_REVERSE ? 0 : live_ - 1;
  for (;;) {
    while (Fiber* next = pick_anywhere()) {
      switch_to(next);  // returns when no fiber is ready, or after a failure
      if (launch_->failed()) return;
    }
    bool done = true;
    for (size_t i = 0; i < live_; ++i) done &= blocks_[i]->done == blocks_[i]->threads;
    if (done) return;
    if (!pass_grid_barrier()) {
      if (!launch_->failed()) report_deadlock();
      return;
    }
  }
}

// If all threads are in the grid barrier, waits for the other workers and wakes all; else false.
bool Worker::pass_grid_barrier() {
  for (size_t i = 0; i < live_; ++i) {
    if (blocks_[i]->in_grid != blocks_[i]->threads) return false;
  }
  if (!launch_->grid_barrier.meet(workers_)) return false;
  grid_meeting_.complete();
  for (size_t i = 0; i < live_; ++i) {
    blocks_[i]->in_grid = 0;
    wake(*blocks_[i]);
  }
  return true;
}

void Worker::report_deadlock() {
  static const char* const kWaiting[] = {"ready", "in a warp collective", "in __syncthreads",
                                         "in the cluster barrier", "in the grid barrier"};
  for (size_t i = 0; i < live_; ++i) {
    Block& block = *blocks_[i];
    if (block.done == block.threads) continue;
    Text text;
    text.add("deadlock in block ").index(block.fibers[0]->self.block);
    // Groups of consecutive threads in one state at one site.
    for (unsigned start = 0, end; start < block.threads; start = end) {
      const Fiber& head = *block.fibers[start];
      for (end = start + 1; end < block.threads; ++end) {
        const Fiber& fiber = *block.fibers[end];
        if (fiber.state != head.state) break;
        if (head.state != State::done && fiber.site.line != head.site.line) break;
      }
      text.add("; threads %u..%u ", start, end - 1);
      if (head.state == State::done) {
        text.add("have exited");
      } else {
        text.add("wait %s at ", kWaiting[static_cast<int>(head.state)]).site(head.site);
      }
    }
    launch_->fail(text.c_str());
    return;
  }
}

}  // namespace tf
