// Fibers and blocks: creation, reuse between launches, and start.
#include "worker.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <new>
#include <utility>

namespace tf {

namespace {

// Not a power of two, because stacks a power of two apart would map to the same cache sets.
#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kStackBytes = 260 << 10;
#else
constexpr size_t kStackBytes = 68 << 10;
#endif

// Most fibers that a worker keeps for the next launch; a large resident launch may need far more.
constexpr size_t kKeptFibers = 4096;

__attribute__((tls_model("initial-exec"))) thread_local Worker* running_worker = nullptr;

size_t rounded(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

void release_shared(Block& block) {
  if (!block.shared) return;
  if (block.shared_guarded) {
    tf_guard_free(block.shared);
  } else {
    unpoison(block.shared, block.shared_bytes);
    free(block.shared);
  }
  block.shared = nullptr;
}

// Provides `bytes` bytes of shared memory; followed by an inaccessible page if `guarded`.
void provide_shared(Block& block, size_t bytes, bool guarded) {
  const size_t room = rounded(bytes, 128) + 128;
  if (guarded || block.shared_guarded || !block.shared || block.shared_bytes < room) {
    release_shared(block);
    block.shared_guarded = guarded;
    block.shared_bytes = room;
    void* memory = guarded ? tf_guard_alloc(bytes, 0, "shared memory") : aligned_alloc(128, room);
    if (!memory) throw std::bad_alloc();
    block.shared = static_cast<unsigned char*>(memory);
  }
  if (!guarded) {
    unpoison(block.shared, block.shared_bytes);
    poison(block.shared + rounded(bytes, 8), block.shared_bytes - rounded(bytes, 8));
  }
}

}  // namespace

Worker* Worker::running() { return running_worker; }

Block::~Block() { release_shared(*this); }

// Reserves address space only: pages are allocated at first use.
Stacks::Stacks(size_t count) : bytes_(count * kStackBytes) {
  void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  // Most stacks use one page.
  madvise(memory, bytes_, MADV_NOHUGEPAGE);
  memory_ = static_cast<unsigned char*>(memory);
}

Stacks::~Stacks() {
  // Later mappings at this address are not these stacks.
  unpoison(memory_, bytes_);
  munmap(memory_, bytes_);
}

unsigned char* Stacks::operator[](size_t index) const { return memory_ + index * kStackBytes; }

Fiber::~Fiber() { hooks.destroy_fiber(); }

void Worker::fiber_main() {
  Worker& worker = *running_worker;
  StackHooks::arrive_first(worker.home_hooks_);
  for (;;) {
    const tf_call& call = worker.launch_->call;
    acquire(worker.launch_);
    const tf_dim3 thread = tf_self->thread;
    call.kernel->run(call.args, tf_self, {thread.x + 1, thread.y + 1, thread.z + 1});
    release(&worker);
    Fiber& fiber = *worker.current_;
    fiber.state = State::done;
    fiber.warp->ready &= ~(1u << fiber.lane());
    ++fiber.block->done;
    worker.yield();
  }
}

// Adds fibers to the block until it has `count`.
void Worker::make_fibers(Block& block, size_t count) {
  const size_t first = block.fibers.size();
  if (first >= count) return;
  block.stacks.emplace_back(new Stacks(count - first));
  for (size_t i = first; i < count; ++i) {
    unsigned char* stack = (*block.stacks.back())[i - first];
    std::unique_ptr<Fiber> fiber(new Fiber());
    fiber->block = &block;
    fiber->linear = static_cast<unsigned>(i);
    const size_t colour = i % 32 * 192;  // distributes stack tops over the sets of the L1 cache
    fiber->hooks.create_fiber(stack, kStackBytes);
    fiber->context.prepare(stack, kStackBytes - colour, fiber_main);
    block.fibers.push_back(std::move(fiber));
    ++fiber_count_;
  }
}

// Prepares `count` blocks for the launch: fibers, shared memory, coordinates.
void Worker::provide(size_t count) {
  while (blocks_.size() < count) blocks_.emplace_back(new Block());
  live_ = count;
  const tf_dim3 size = launch_->call.block;
  const unsigned threads = size.x * size.y * size.z, side = launch_->call.cluster;
  while (clusters_.size() < count / side) clusters_.emplace_back(new Cluster());
  for (size_t i = 0; i < count; ++i) {
    Block& block = *blocks_[i];
    block.cluster = clusters_[i / side].get();
    block.cluster->blocks.resize(side);
    block.cluster->shared.resize(side);
    block.cluster->blocks[i % side] = &block;
    make_fibers(block, threads);
    block.threads = threads;
    block.warps.resize((threads + 31) / 32);
    block.values.resize(threads * size_t{TF_MAX_VALUE});
    provide_shared(block, launch_->call.shared_bytes, launch_->has(TF_GUARD_SHARED));
    tf_thread self = launch_->thread_template();
    self.shared = block.shared;
    self.cluster_shared = block.cluster->shared.data();
    for (unsigned t = 0; t < threads; ++t) {
      Fiber& fiber = *block.fibers[t];
      fiber.warp = &block.warps[t / 32];
      fiber.self = self;
      fiber.self.thread = {t % size.x, t / size.x % size.y, t / size.x / size.y};
    }
  }
}

void Worker::start(Block& block, tf_dim3 index) {
  block.in_block = block.in_grid = block.done = 0;
  block.cluster->waiting = 0;
  block.cluster->shared[index.x % launch_->call.cluster] = block.shared;
  unsigned lanes = block.threads;
  for (Warp& warp : block.warps) {
    warp.exists = warp.ready = lanes >= 32 ? ~0u : (1u << lanes) - 1;
    warp.waiting = 0;
    lanes -= 32;
  }
  for (unsigned t = 0; t < block.threads; ++t) {
    Fiber& fiber = *block.fibers[t];
    fiber.state = State::running;
    fiber.self.block = index;
  }
  if (launch_->has(TF_GUARD_SHARED)) {
    memset(block.shared, launch_->call.shared_fill, launch_->call.shared_bytes);
  }
}

void Worker::run(Launch& launch, unsigned long long first, unsigned long long last, int workers) {
  launch_ = &launch;
  workers_ = workers;
  running_worker = this;
  home_hooks_.adopt_os_thread();
  random_state_ = launch.call.seed * 2654435761u + static_cast<unsigned>(first) + 1;
  const unsigned long long step = launch.has(TF_RESIDENT) ? last - first : launch.call.cluster;
  try {
    provide(step);
  } catch (const std::bad_alloc&) {
    launch.fail("not enough memory for the threads of the blocks that must run together");
  }
  release(&launch);
  for (unsigned long long i = first; i < last && !launch.failed(); i += step) {
    for (size_t k = 0; k < step; ++k) start(*blocks_[k], launch.block_at(i + k));
    run_to_end();
  }
  acquire(this);
  launch.grid_barrier.leave();
  tf_self = nullptr;
  running_worker = nullptr;
  // After a failure fibers are suspended in the middle of a kernel and cannot be reused.
  if (launch.failed() || fiber_count_ > kKeptFibers) release_fibers();
}

void Worker::release_fibers() {
  blocks_.clear();
  clusters_.clear();
  fiber_count_ = 0;
}

void Worker::abandon(const char* message, tf_failure failure) {
  launch_->fail(message, failure);
  switch_to(nullptr);
  abort();
}

}  // namespace tf
