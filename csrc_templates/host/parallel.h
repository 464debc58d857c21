// parallel(n, body): body(i, m) for i < m on m OS threads at once, m <= n.
//
// With OpenMP if the compiler has it: its thread pool is then torch's own, so that the two do not
// compete for cores. Otherwise, and in a forked child, new threads are created: a child has none of
// its parent's threads, and OpenMP would wait for them, also if only torch used it before the fork.
#pragma once

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include <future>
#include <system_error>
#include <thread>
#include <vector>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace tf {

// True if the process was forked and has not called exec since: PF_FORKNOEXEC in the seventh field
// behind the name in /proc/self/stat. A name may contain anything, so the last parenthesis ends it.
inline bool was_forked_before() {
  char text[1024];
  size_t length = 0;
  if (FILE* file = fopen("/proc/self/stat", "r")) {
    length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
  }
  text[length] = 0;
  unsigned flags = 0;
  const char* behind_name = strrchr(text, ')');
  if (behind_name) sscanf(behind_name + 1, " %*c %*d %*d %*d %*d %*d %u", &flags);
  return flags & 0x40;
}

static bool is_forked_child = false;

__attribute__((constructor)) static void notice_forks() {
  is_forked_child = was_forked_before();
  pthread_atfork(nullptr, nullptr, [] { is_forked_child = true; });
}

inline int available_threads() {
#ifdef _OPENMP
  return omp_get_max_threads();
#else
  return static_cast<int>(std::thread::hardware_concurrency());
#endif
}

template <class Body>
void parallel(int n, const Body& body) {
  if (n <= 1) return body(0, 1);
#ifdef _OPENMP
  if (!is_forked_child) {
#pragma omp parallel num_threads(n)
    body(omp_get_thread_num(), omp_get_num_threads());
    return;
  }
#endif
  std::vector<std::thread> threads;
  std::promise<int> started;
  const std::shared_future<int> count = started.get_future().share();
  try {
    for (int i = 1; i < n; ++i) threads.emplace_back([&body, count, i] { body(i, count.get()); });
  } catch (const std::system_error&) {
    // The system gives no more threads: those that there are share the work.
  }
  const int m = static_cast<int>(threads.size()) + 1;
  started.set_value(m);
  body(0, m);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace tf
