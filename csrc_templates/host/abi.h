// C interface between compiled kernels, the host runtime and Python.
//
// A compiled program exports one `tf_kernel` per kernel. Python fills a `tf_call` (mirrored by
// thunder_fuser/runtime/host/abi.py) and passes it to `tf_launch`. While a kernel runs, `tf_self`
// points to the coordinates of the CUDA thread that the OS thread currently executes.
#pragma once

struct tf_dim3 {
  unsigned x, y, z;
};

// Source location in a kernel.
struct tf_site {
  const char* file;
  int line;
};

// Built-in variables of one CUDA thread.
struct tf_thread {
  tf_dim3 thread, block, block_size, grid_size;
  unsigned char* shared;
  unsigned char* const* cluster_shared;  // shared memory of each block of its cluster, by rank
  bool fast;  // collectives may use the shortcut of TF_FAST_COLLECTIVE
};

struct tf_kernel {
  // Runs the CUDA thread *self, which is *tf_self. Without collectives: the threads from there up to
  // `end`, exclusive, of each axis, one after another; self->thread is the one that runs.
  void (*run)(void** args, tf_thread* self, tf_dim3 end);
  unsigned* block_nanoseconds;  // recent time of a block; 0: not known
};

enum tf_order { TF_FORWARD = 0, TF_REVERSE = 1, TF_RANDOM = 2 };

enum tf_flag {
  TF_PLAIN = 1,        // threads run sequentially to completion: no collectives
  TF_RESIDENT = 2,     // all blocks are resident at the same time (cooperative launch)
  TF_FAITHFUL = 4,     // collectives are executed step by step, as on a GPU
  TF_GUARD_SHARED = 8,  // shared memory starts as `shared_fill` bytes and ends at a guard page
  TF_ALL_THREADS = 16,  // use `threads` OS threads even if fewer would be faster
};

struct tf_call {
  const tf_kernel* kernel;
  void** args;
  char* message;  // receives the error text
  unsigned message_bytes;
  tf_dim3 grid, block;
  unsigned cluster;  // cluster size in blocks, along x; 1: no clusters
  unsigned shared_bytes;
  int threads;  // most OS threads; 0: as many as OpenMP would use
  int order;    // tf_order of threads and blocks
  unsigned seed;
  unsigned flags;
  unsigned char shared_fill;
};

#pragma GCC visibility push(default)
extern "C" {

// A pointer, because the loader reserves very little static TLS for libraries loaded with dlopen.
extern __thread tf_thread* tf_self __attribute__((tls_model("initial-exec")));

// Cause of a failed launch: the kernel (TF_BROKEN), or an index in its data (TF_BAD_INDEX).
enum tf_failure { TF_SUCCEEDED = 0, TF_BROKEN = 1, TF_BAD_INDEX = 2 };

// Runs one launch to completion. Returns a tf_failure, with an error text in call->message.
int tf_launch(const tf_call* call);

// Aborts the launch with `message`, the site and the coordinates of the current CUDA thread.
[[noreturn]] void tf_fail(const char* message, tf_site site);
// Aborts the launch with `message` only.
[[noreturn]] void tf_give_up(const char* message, tf_failure failure = TF_BROKEN);
// Aborts the launch for an out-of-range index in the data, which is formatted by `format`.
[[noreturn]] void tf_fail_index(const char* format, long long index, long long extent);

// ---- collectives: called by all participating threads; they return when all have called

void tf_sync_block(tf_site site);
void tf_sync_cluster(tf_site site);
void tf_sync_grid(tf_site site);

enum tf_warp_op { TF_SHFL, TF_SHFL_XOR, TF_SHFL_UP, TF_SHFL_DOWN, TF_BALLOT, TF_SYNC_WARP };

// Exchanges `value` between the lanes of `mask`; `lane` and `width` as in CUDA's __shfl_*_sync.
unsigned long long tf_warp(tf_warp_op op, unsigned mask, unsigned long long value, int lane,
                           int width, tf_site site);

// Gathers one value of `bytes` bytes (at most TF_MAX_VALUE) from each thread of a warp or a block;
// the last thread to arrive calls `combine(values, count)`, which replaces each value by its
// result.
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
// Returns 1, and the offset from `memory`, if a byte between it and an inaccessible page was
// changed.
int tf_guard_damage(void* memory, long long* offset);
void tf_guard_free(void* memory);

#ifdef TF_TSAN
// Annotation for ThreadSanitizer in place of a fence, which it does not support.
void tf_tsan_fence(void);
#endif
}
#pragma GCC visibility pop
