// One OS thread's share of a launch: CUDA threads as fibers, scheduled around their collectives.
//
// Threads of a block run one at a time, each until it enters a collective, where it parks until all
// participating threads have arrived. The last to arrive executes the collective for all of them
// and makes them ready again. The launch's order decides which ready thread runs next: a correct
// kernel computes the same in every order, one with a missing barrier does not.
//
// If no thread is ready and some are parked, the kernel cannot proceed: divergence and deadlock are
// errors with coordinates instead of hangs.
#pragma once
#include <memory>
#include <vector>

#include "abi.h"
#include "context.h"
#include "hooks.h"
#include "launch.h"

namespace tf {

enum class State : unsigned char { running, in_warp, in_block, in_cluster, in_grid, done };

// Operands of a lane for a warp collective; `value` is replaced by its result.
struct WarpCall {
  unsigned long long value;
  tf_site site;
  tf_warp_op op;
  int lane, width;
  unsigned mask;
};

struct Warp {
  unsigned exists, ready, waiting;  // one bit a lane; waiting: inside a warp collective
  Meeting meeting;
  WarpCall calls[32];
};

struct Block;
struct Cluster;

// Memory for `count` stacks, mapped and unmapped at once: a resident grid has 100,000.
class Stacks {
 public:
  explicit Stacks(size_t count);
  ~Stacks();
  Stacks(const Stacks&) = delete;
  unsigned char* operator[](size_t index) const;

 private:
  size_t bytes_;
  unsigned char* memory_;
};

struct Fiber {
  ~Fiber();

  Context context;
  tf_thread self;
  Block* block;
  Warp* warp;
  unsigned linear;  // position in the block
  State state;      // collective that it is parked in, or running (which includes ready)
  void* value;      // operand and result of a combine
  tf_site site;     // the collective in which it is parked
  StackHooks hooks;

  unsigned lane() const { return linear % 32; }
};

struct Block {
  ~Block();

  std::vector<std::unique_ptr<Stacks>> stacks;
  std::vector<std::unique_ptr<Fiber>> fibers;  // at least `threads` of them
  std::vector<Warp> warps;
  std::vector<unsigned char> values;  // buffer for a combine
  unsigned char* shared = nullptr;
  size_t shared_bytes = 0;
  bool shared_guarded = false;
  unsigned threads, in_block, in_grid, done;  // number of threads, and of those in each state
  tf_site barrier;                            // site of the first thread in the block barrier
  Meeting meeting;
  Cluster* cluster;
};

// Blocks of a cluster, consecutive among those of their worker.
struct Cluster {
  std::vector<Block*> blocks;          // in the order in which they were started
  std::vector<unsigned char*> shared;  // by rank
  unsigned waiting;                    // threads in the cluster barrier
  tf_site barrier;                     // site of the first of them
  Meeting meeting;
};

class Worker {
 public:
  // Worker that runs fibers on this OS thread now, or null.
  static Worker* running();

  // Runs the blocks first, ..., last-1 of the launch, one cluster at a time, or all at once if the
  // launch is resident. `workers` workers share the launch.
  void run(Launch& launch, unsigned long long first, unsigned long long last, int workers);

  // The collectives of abi.h, called by the running fiber.
  void sync_block(tf_site site);
  void sync_cluster(tf_site site);
  void sync_grid(tf_site site);
  unsigned long long warp(const WarpCall& call);
  void combine_warp(void* value, int bytes, tf_combine combine, tf_site site);
  void combine_block(void* value, int bytes, tf_combine combine, tf_site site);

  // Aborts the launch; called by the running fiber, which never continues.
  [[noreturn]] void abandon(const char* message, tf_failure failure = TF_BROKEN);

 private:
  // worker.cpp: fibers and blocks
  static void fiber_main();
  void provide(size_t count);
  void make_fibers(Block& block, size_t count);
  void release_fibers();
  void start(Block& block, tf_dim3 index);

  // schedule.cpp: scheduling of fibers
  void run_to_end();
  bool pass_grid_barrier();
  void switch_to(Fiber* next);
  void yield();
  Fiber* pick(Block& block, size_t first_warp);
  Fiber* pick_anywhere();
  unsigned random();
  void report_deadlock();

  // collectives.cpp
  Fiber& park(State state, tf_site site);
  void wake(Block& block);
  void wait(char* meeting);
  bool arrive_in_warp(const WarpCall& call);
  bool arrive_in_block(tf_site site);
  void check_same_barrier(unsigned waiting, tf_site& first, tf_site site);
  void check_same_call(const Fiber& last, unsigned mask);

  Launch* launch_ = nullptr;
  int workers_ = 1;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<std::unique_ptr<Cluster>> clusters_;
  size_t live_ = 0;  // number of blocks_ that the launch uses
  size_t turn_ = 0;  // the block that runs
  size_t fiber_count_ = 0;
  Meeting grid_meeting_;
  unsigned random_state_ = 1;

  Fiber* current_ = nullptr;  // null: the OS thread's own stack
  Context home_;
  StackHooks home_hooks_;
};

}  // namespace tf
