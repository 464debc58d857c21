// What compiled kernels, the host runtime and Python agree on: plain C structs and functions.
//
// A compiled program exports one `tf_kernel` per kernel. Python fills a `tf_call` (mirrored by
// thunder_fuser/runtime/host/abi.py) and passes it to `tf_launch`. While a kernel runs, `tf_self`
// points to the coordinates of the CUDA thread that the calling OS thread currently plays.
#pragma once

struct tf_dim3 {
  unsigned x, y, z;
};

// A place in a kernel's source.
struct tf_site {
  const char* file;
  int line;
};

// One CUDA thread as its kernel sees it.
struct tf_thread {
  tf_dim3 thread, block, block_size, grid_size;
  unsigned char* shared;
  unsigned char* const* cluster_shared;  // of each block of its cluster, by rank
  bool fast;  // collectives may take their shortcut
};

struct tf_kernel {
  void (*thread)(void** args);                  // runs the CUDA thread *tf_self
  void (*block)(void** args, tf_thread* self);  // runs all threads of a block, one by one
  unsigned* block_nanoseconds;                  // how long a block took lately; 0: not known
};

enum tf_order { TF_FORWARD = 0, TF_REVERSE = 1, TF_RANDOM = 2 };

enum tf_flag {
  TF_PLAIN = 1,        // threads run one by one to their end: no collectives
  TF_RESIDENT = 2,     // all blocks are alive at the same time (cooperative launch)
  TF_FAITHFUL = 4,     // collectives do what a GPU does, step by step
  TF_GUARD_SHARED = 8,  // shared memory starts as `shared_fill` bytes and ends at a guard page
  TF_ALL_THREADS = 16,  // use `threads` OS threads even if fewer would be faster
};

struct tf_call {
  const tf_kernel* kernel;
  void** args;
  char* message;  // receives the error text
  unsigned message_bytes;
  tf_dim3 grid, block;
  unsigned cluster;  // blocks along x that read and write each other's shared memory; 1: none do
  unsigned shared_bytes;
  int threads;  // OS threads at most; 0: as many as OpenMP would use
  int order;    // tf_order of threads and blocks
  unsigned seed;
  unsigned flags;
  unsigned char shared_fill;
};

#pragma GCC visibility push(default)
extern "C" {

// A pointer, because the loader reserves very little thread-local storage for late libraries.
extern __thread tf_thread* tf_self __attribute__((tls_model("initial-exec")));

// Whose fault it is that a launch failed: the kernel's, or that of the numbers it was given.
enum tf_failure { TF_SUCCEEDED = 0, TF_BROKEN = 1, TF_BAD_INDEX = 2 };

// Runs one launch to its end. Returns a tf_failure, with an error text in call->message.
int tf_launch(const tf_call* call);

// Gives up the launch with `message`, the site and the coordinates of the current CUDA thread.
[[noreturn]] void tf_fail(const char* message, tf_site site);
// The same with nothing added.
[[noreturn]] void tf_give_up(const char* message, tf_failure failure = TF_BROKEN);
// An index among data that does not exist: `format` has a place for it.
[[noreturn]] void tf_fail_index(const char* format, long long index);

// ---- collectives: every thread concerned calls, and returns when all have

void tf_sync_block(tf_site site);
void tf_sync_cluster(tf_site site);
void tf_sync_grid(tf_site site);

enum tf_warp_op { TF_SHFL, TF_SHFL_XOR, TF_SHFL_UP, TF_SHFL_DOWN, TF_BALLOT, TF_SYNC_WARP };

// Exchanges `value` between the lanes of `mask`; `lane` and `width` as in CUDA's __shfl_*_sync.
unsigned long long tf_warp(tf_warp_op op, unsigned mask, unsigned long long value, int lane,
                           int width, tf_site site);

// Gathers one value of `bytes` (at most TF_MAX_VALUE) from each thread of a warp or a block, lets
// the last thread to arrive replace them by `combine(values, count)`, and hands each its own back.
enum { TF_MAX_VALUE = 64 };
typedef void (*tf_combine)(void* values, int count);
void tf_combine_warp(void* value, int bytes, tf_combine combine, tf_site site);
void tf_combine_block(void* value, int bytes, tf_combine combine, tf_site site);

// ---- guard pages (guard.cpp): memory between inaccessible pages, for debugging

// `bytes` bytes, filled with 0xff, at an address with the remainder of `like` modulo 16, ending as
// close to an inaccessible page as that allows. A kernel's access to the pages around it ends the
// launch with an error that names `name`. Null if there is no memory.
void* tf_guard_alloc(unsigned long long bytes, unsigned long long like, const char* name);
void tf_guard_protect(void* memory);  // from now on, writes to it are errors too
// 1 and where, relative to `memory`, if a byte between it and the inaccessible pages was changed.
int tf_guard_damage(void* memory, long long* offset);
void tf_guard_free(void* memory);

#ifdef TF_TSAN
// What ThreadSanitizer is told in place of a fence, which it cannot see.
void tf_tsan_fence(void);
#endif
}
#pragma GCC visibility pop
