// A stand-in for libcuda.so.1, so that everything between us and the driver can be tested anywhere.
//
// It knows one device (an H200 by its attributes) and one kernel, whatever its name and code:
//     scale(const float* x, float* y, float a, int n)    y[i] = a * x[i] for i < n
// which it runs on the CPU when launched, after a pause in which other threads get on. It insists on
// what a driver insists on: a context in the calling thread, and permission for shared memory.
#include <dlfcn.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <set>

// A loaded library, and the stream on which a launch of its kernel may still run.
struct Library {
  bool is_running;
  void* stream;
};
static std::set<Library*> libraries;

extern "C" {

// What the last launch asked for; tests read it through ctypes.
struct LastLaunch {
  unsigned grid[3], block[3], shared_bytes, cooperative;
  unsigned long long stream;
  unsigned launches, libraries;  // libraries that are loaded
} fake_last;

// What tests make it do: fail in some function; be in a capture of some stream, which kernels cannot be loaded
// in and which a wait for the context invalidates; and keep launches running.
char fake_failing[64] = "";  // a function, and what it returns
int fake_failure = 0;
int fake_captures = 0, fake_is_busy = 0;
// The stream that is captured, and what became of the capture.
unsigned long long fake_captured_stream = 0;
int fake_invalidated = 0;

// How many multiprocessors clusters may have, of groups that hold a whole number of them.
int fake_groups = 8, fake_group = 16;

enum {
  kSuccess = 0, kInvalidValue = 1, kInvalidContext = 201, kNotFound = 500,
  kNotReady = 600, kResources = 701, kCapturing = 900, kImplicit = 906
};

#define FAILS_IF_ASKED if (fake_failure && !strcmp(__func__, fake_failing)) return fake_failure

static thread_local void* context = nullptr;
static thread_local int capture_mode = 0;  // of this thread: 2 is no part of any capture
static int allowed_shared_bytes = 48 * 1024;

int cuInit(unsigned) { return kSuccess; }
int cuDriverGetVersion(int* version) { return *version = 13010, kSuccess; }
int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, kSuccess; }

int cuDeviceGetName(char* name, int length, int) {
  return strncpy(name, "Fake H200", length), kSuccess;
}

// Attributes by their number in CUdevice_attribute.
int cuDeviceGetAttribute(int* value, int attribute, int) {
  switch (attribute) {
    case 1: *value = 1024; break;        // threads in a block
    case 5: *value = 2147483647; break;  // grid x, y, z
    case 6: *value = 65535; break;
    case 7: *value = 65535; break;
    case 13: *value = 1980000; break;    // clock, kHz
    case 16: *value = 132; break;        // multiprocessors
    case 36: *value = 3201000; break;    // memory clock, kHz
    case 37: *value = 6144; break;       // memory bus, bits
    case 38: *value = 50 << 20; break;   // L2
    case 39: *value = 2048; break;       // threads of a multiprocessor
    case 75: *value = 9; break;          // compute capability
    case 76: *value = 0; break;
    case 81: *value = 228 << 10; break;  // shared memory of a multiprocessor
    case 82: *value = 65536; break;      // its registers
    case 97: *value = 227 << 10; break;  // shared memory of a block, on request
    case 106: *value = 32; break;         // its blocks
    case 111: *value = 1024; break;       // shared memory of a block that the system takes
    case 120: *value = 1; break;          // it has clusters
    default: return kInvalidValue;
  }
  return kSuccess;
}

int cuCtxGetCurrent(void** current) { return *current = context, kSuccess; }
int cuCtxSetCurrent(void* chosen) {
  FAILS_IF_ASKED;
  return context = chosen, kSuccess;
}
int cuDevicePrimaryCtxRetain(void** primary, int device) {
  FAILS_IF_ASKED;
  return *primary = (void*)(0xC0DEl + device), kSuccess;
}

int cuLibraryLoadData(void** library, const void* code, void*, void*, unsigned, void*, void*,
                      unsigned) {
  FAILS_IF_ASKED;
  if (fake_captures && capture_mode != 2) return kCapturing;
  ++fake_last.libraries;
  *library = *libraries.insert(new Library{}).first;
  return memcmp(code, "\x7f" "ELF", 4) ? kInvalidValue : kSuccess;
}
// Nothing of it may be running, and a launch runs until an event behind it has been seen.
int cuLibraryUnload(void* library) {
  FAILS_IF_ASKED;
  if (fake_captures && capture_mode != 2) return fake_invalidated = 1, kCapturing;
  if (!libraries.count((Library*)library) || ((Library*)library)->is_running) return kInvalidValue;
  --fake_last.libraries;
  return libraries.erase((Library*)library), delete (Library*)library, kSuccess;
}
// The default stream synchronises with the captured one.
int cuStreamIsCapturing(void* stream, int* status) {
  FAILS_IF_ASKED;
  const bool is_captured = fake_captures && (unsigned long long)stream == fake_captured_stream;
  *status = is_captured;
  return fake_captures && !stream ? kImplicit : context ? kSuccess : kInvalidContext;
}
struct Event {
  bool is_recorded;
  void* stream;
};
int cuEventCreate(void** event, unsigned flags) {
  FAILS_IF_ASKED;
  return *event = new Event{}, flags == 2 && context ? kSuccess : kInvalidValue;
}
int cuEventRecord(void* event, void* stream) {
  FAILS_IF_ASKED;
  if (fake_captures && (!stream || (unsigned long long)stream == fake_captured_stream))
    return fake_invalidated = 1, kCapturing;
  return *(Event*)event = {true, stream}, context ? kSuccess : kInvalidContext;
}
int cuEventQuery(void* event) {
  if (fake_captures && capture_mode != 2) return fake_invalidated = 1, kCapturing;
  if (!((Event*)event)->is_recorded || fake_is_busy) return kNotReady;
  for (Library* library : libraries)
    library->is_running &= library->stream != ((Event*)event)->stream;
  return kSuccess;
}
int cuEventDestroy(void* event) { return delete (Event*)event, kSuccess; }
int cuLibraryGetKernel(void** kernel, void* library, const char*) {
  FAILS_IF_ASKED;
  return *kernel = library, kSuccess;
}
int cuThreadExchangeStreamCaptureMode(int* mode) {
  const int before = capture_mode;
  return capture_mode = *mode, *mode = before, kSuccess;
}
int cuKernelGetFunction(void** function, void* kernel) {
  FAILS_IF_ASKED;
  if (fake_captures && capture_mode != 2) return kCapturing;
  return *function = kernel, context ? kSuccess : kInvalidContext;
}
int cuFuncSetAttribute(void*, int attribute, int value) {
  FAILS_IF_ASKED;
  if (attribute == 8) allowed_shared_bytes = value;
  return kSuccess;
}
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void*, int, size_t) {
  FAILS_IF_ASKED;
  return *blocks = 2, kSuccess;
}

// CUlaunchConfig and CUlaunchAttribute, as far as they are read.
struct LaunchAttribute {
  int id, padding;
  unsigned value[16];
};
struct LaunchConfig {
  unsigned grid[3], block[3], shared_bytes;
  void* stream;
  const LaunchAttribute* attributes;
  unsigned count;
};
int cuOccupancyMaxActiveClusters(int* clusters, void*, const LaunchConfig* config) {
  const bool is_cluster = config->count == 1 && config->attributes->id == 4;
  if (!context || !is_cluster || !config->block[0]) return kInvalidValue;
  if ((int)config->shared_bytes > allowed_shared_bytes) return kInvalidValue;
  return *clusters = fake_groups * (fake_group / (int)config->attributes->value[0]), kSuccess;
}

static int launch(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                  unsigned bz, unsigned shared_bytes, void* stream, void** params, unsigned cooperative) {
  if (!context) return kInvalidContext;
  if ((int)shared_bytes > allowed_shared_bytes) return kInvalidValue;
  usleep(2000);
  const float* x = *(const float**)params[0];
  float* y = *(float**)params[1];
  const float a = *(float*)params[2];
  const int n = *(int*)params[3];
  if (std::isnan(a)) return kResources;
  *(Library*)function = {true, stream};
  for (int i = 0; i < n; ++i) y[i] = a * x[i];
  fake_last = {{gx, gy, gz}, {bx, by, bz}, shared_bytes, cooperative, (unsigned long long)stream,
               fake_last.launches + 1, fake_last.libraries};
  return kSuccess;
}
int cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared_bytes, void* stream, void** params, void**) {
  FAILS_IF_ASKED;
  return launch(function, gx, gy, gz, bx, by, bz, shared_bytes, stream, params, 0);
}
int cuLaunchCooperativeKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                              unsigned by, unsigned bz, unsigned shared_bytes, void* stream,
                              void** params) {
  FAILS_IF_ASKED;
  return launch(function, gx, gy, gz, bx, by, bz, shared_bytes, stream, params, 1);
}

int cuGetErrorString(int error, const char** text) {
  *text = error == kResources ? "too many resources requested for launch" : "another error";
  return kSuccess;
}

// NVRTC asks for tools that may be attached to the driver.
int cuGetExportTable(const void** table, const void*) { return *table = nullptr, kNotFound; }

int cuGetProcAddress_v2(const char* symbol, void** function, int, unsigned long long, int* found) {
  *function = dlsym(RTLD_DEFAULT, symbol);
  if (!*function) {
    Dl_info self;
    dladdr((void*)cuInit, &self);
    *function = dlsym(dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD), symbol);
  }
  if (found) *found = *function ? 0 : 1;
  return *function ? kSuccess : kNotFound;
}
}
