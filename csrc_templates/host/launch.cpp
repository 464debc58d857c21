// Entry points of the runtime: a launch is divided among OS threads, which run their blocks as
// plain loops (kernels without collectives) or as fibers (worker.h).
#include "launch.h"

#include <setjmp.h>
#include <stdlib.h>

#include <chrono>
#include <vector>

#include "parallel.h"
#include "text.h"
#include "worker.h"

__thread tf_thread* tf_self;

namespace tf {

namespace {

// Estimated time of a launch in ns below which waking other OS threads costs more than it saves.
constexpr double kNanosecondsWorthSharing = 30e3;

// Launch whose threads run sequentially on the OS thread's own stack.
struct PlainRun {
  Launch& launch;
  sigjmp_buf escape;
};
__attribute__((tls_model("initial-exec"))) thread_local PlainRun* plain_run = nullptr;

void run_plain(Launch& launch, unsigned long long first, unsigned long long last) {
  tf_thread self = launch.thread_template();
  std::vector<unsigned char> shared(launch.call.shared_bytes + 128);
  self.shared = shared.data() + (128 - reinterpret_cast<size_t>(shared.data()) % 128);
  PlainRun run{launch, {}};
  plain_run = &run;
  tf_self = &self;
  if (sigsetjmp(run.escape, 0) == 0) {  // signal masks never change, so none is saved
    for (unsigned long long i = first; i < last && !launch.failed(); ++i) {
      self.block = launch.block_at(i);
      self.thread = {0, 0, 0};
      launch.call.kernel->run(launch.call.args, &self, self.block_size);
    }
  }
  tf_self = nullptr;
  plain_run = nullptr;
}

Worker& this_threads_worker() {
  static thread_local std::unique_ptr<Worker> worker(new Worker());
  return *worker;
}

int choose_threads(const tf_call& call, unsigned long long clusters) {
  int threads = call.threads > 0 ? call.threads : available_threads();
  if (static_cast<unsigned long long>(threads) > clusters) threads = static_cast<int>(clusters);
  if (threads <= 1 || call.flags & TF_ALL_THREADS) return threads;
  const double known = __atomic_load_n(call.kernel->block_nanoseconds, __ATOMIC_RELAXED);
  const double all = known * call.cluster * clusters;
  return known > 0 && all < kNanosecondsWorthSharing ? 1 : threads;
}

// Updates the time per block. Interrupts make measurements too long, so that increases are limited.
void learn_block_time(unsigned* known, unsigned long long measured) {
  const unsigned long long before = __atomic_load_n(known, __ATOMIC_RELAXED);
  const unsigned long long most = before ? before + before / 8 + 1 : 1u << 30;
  const auto learned = static_cast<unsigned>(measured < most ? measured : most);
  __atomic_store_n(known, learned, __ATOMIC_RELAXED);
}

// Orders non-temporal stores (host/stream.h) before later writes of this OS thread.
void order_streamed_stores() {
#ifdef __x86_64__
  __builtin_ia32_sfence();
#endif
}

unsigned long long gcd(unsigned long long a, unsigned long long b) { return b ? gcd(b, a % b) : a; }

}  // namespace

// ---- Rendezvous

bool Rendezvous::meet(int parties) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (++waiting_ == parties) {
    waiting_ = 0;
    ++round_;
    changed_.notify_all();
    return true;
  }
  const int round = round_;
  changed_.wait(lock, [&] { return round_ != round || broken_; });
  return round_ != round;
}

void Rendezvous::leave() {
  std::lock_guard<std::mutex> lock(mutex_);
  broken_ = true;
  changed_.notify_all();
}

// ---- Launch

Launch::Launch(const tf_call& the_call)
    : call(the_call),
      blocks(static_cast<unsigned long long>(call.grid.x) * call.grid.y * call.grid.z) {}

tf_dim3 Launch::block_at(unsigned long long i) const {
  if (call.order == TF_REVERSE) i = blocks - 1 - i;
  if (call.order == TF_RANDOM) {
    // Blocks of a cluster stay together.
    const unsigned long long clusters = blocks / call.cluster;
    unsigned long long stride = call.seed % clusters | 1;
    while (gcd(stride, clusters) != 1) stride += 2;
    const unsigned long long cluster = (i / call.cluster * stride + call.seed) % clusters;
    i = cluster * call.cluster + (i + call.seed) % call.cluster;
  }
  const tf_dim3 grid = call.grid;
  return {static_cast<unsigned>(i % grid.x), static_cast<unsigned>(i / grid.x % grid.y),
          static_cast<unsigned>(i / grid.x / grid.y)};
}

tf_thread Launch::thread_template() const {
  return {{0, 0, 0}, {0, 0, 0}, call.block, call.grid, nullptr, nullptr, !has(TF_FAITHFUL)};
}

void Launch::fail(const char* message, tf_failure failure) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (failed()) return;
  snprintf(call.message, call.message_bytes, "%s", message);
  failure_ = failure;
}

}  // namespace tf

// ---- the interface of abi.h

int tf_launch(const tf_call* call) {
  tf::Launch launch(*call);
  if (launch.blocks == 0) return 0;
  const unsigned long long clusters = launch.blocks / call->cluster;
  const int wanted = tf::choose_threads(*call, clusters);
  // Time spent in blocks, without starting the threads.
  std::atomic<long long> busy{0};
  tf::parallel(wanted, [&](int part, int parts) {
    const auto start = std::chrono::steady_clock::now();
    const unsigned long long first = clusters * part / parts * call->cluster;
    const unsigned long long last = clusters * (part + 1) / parts * call->cluster;
    if (launch.has(TF_PLAIN)) {
      tf::run_plain(launch, first, last);
    } else {
      tf::this_threads_worker().run(launch, first, last, parts);
    }
    tf::order_streamed_stores();
    busy += std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count();
  });
  tf::learn_block_time(call->kernel->block_nanoseconds, busy / launch.blocks + 1);
  return launch.failure();
}

void tf_give_up(const char* message, tf_failure failure) {
  if (tf::Worker* worker = tf::Worker::running()) worker->abandon(message, failure);
  tf::plain_run->launch.fail(message, failure);
  siglongjmp(tf::plain_run->escape, 1);
}

void tf_fail(const char* message, tf_site site) {
  tf::Text text;
  text.add("%s at ", message).site(site).add(" in ").thread(*tf_self);
  tf_give_up(text.c_str());
}

void tf_fail_index(const char* format, long long index, long long extent) {
  char message[512];
  snprintf(message, sizeof message, format, index, extent, extent - 1);
  tf_give_up(message, TF_BAD_INDEX);
}

// The worker for a collective; an error in a plain launch, whose threads share one stack and cannot
// wait for each other.
static tf::Worker& worker_for(const char* collective, tf_site site) {
  if (tf::Worker* worker = tf::Worker::running()) return *worker;
  tf::Text text;
  text.add("%s in a kernel that was declared to have no collectives", collective);
  tf_fail(text.c_str(), site);
}

void tf_sync_block(tf_site site) { worker_for("__syncthreads", site).sync_block(site); }

void tf_sync_cluster(tf_site site) { worker_for("cluster barrier", site).sync_cluster(site); }

void tf_sync_grid(tf_site site) { worker_for("grid barrier", site).sync_grid(site); }

unsigned long long tf_warp(tf_warp_op op, unsigned mask, unsigned long long value, int lane,
                           int width, tf_site site) {
  return worker_for("warp collective", site).warp({value, site, op, lane, width, mask});
}

void tf_combine_warp(void* value, int bytes, tf_combine combine, tf_site site) {
  worker_for("warp collective", site).combine_warp(value, bytes, combine, site);
}

void tf_combine_block(void* value, int bytes, tf_combine combine, tf_site site) {
  worker_for("block collective", site).combine_block(value, bytes, combine, site);
}

#ifdef TF_TSAN
void tf_tsan_fence(void) {
  static char object;
  tf::acquire(&object);
  tf::release(&object);
}
#endif
