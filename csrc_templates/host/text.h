// Error messages in a fixed buffer, for small stacks and signal handlers.
#pragma once
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "abi.h"

namespace tf {

class Text {
 public:
  __attribute__((format(printf, 2, 3))) Text& add(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const int n = vsnprintf(buffer_ + length_, sizeof buffer_ - length_, format, arguments);
    va_end(arguments);
    length_ += n;
    if (length_ >= sizeof buffer_) length_ = sizeof buffer_ - 1;
    return *this;
  }
  Text& site(tf_site site) {
    const char* slash = strrchr(site.file, '/');
    return add("%s:%d", slash ? slash + 1 : site.file, site.line);
  }
  Text& index(tf_dim3 i) { return add("(%u,%u,%u)", i.x, i.y, i.z); }
  Text& thread(const tf_thread& t) {
    return add("block ").index(t.block).add(" thread ").index(t.thread);
  }
  const char* c_str() const { return buffer_; }

 private:
  char buffer_[1024] = "";
  size_t length_ = 0;
};

}  // namespace tf
