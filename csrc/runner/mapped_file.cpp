// SPDX-License-Identifier: Apache-2.0
#include "runner/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "runtime/base/error.h"

namespace outboard {
namespace {

/// A file descriptor that closes itself. A pipe is opened without waiting for who writes to it.
class Descriptor {
 public:
  explicit Descriptor(const std::string& path) : value_(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {}
  ~Descriptor() {
    if (value_ >= 0) close(value_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int value() const { return value_; }

 private:
  int value_;
};

}  // namespace

MappedFile::MappedFile(const std::string& path) {
  const Descriptor file(path);
  struct stat status{};
  if (file.value() < 0 || fstat(file.value(), &status) != 0) {
    throw Error(OB_INVALID_ARGUMENT, path + " cannot be read: " + std::strerror(errno));
  }
  if (!S_ISREG(status.st_mode)) throw Error(OB_INVALID_ARGUMENT, path + " is not a file");
  bytes_ = static_cast<size_t>(status.st_size);
  if (bytes_ == 0) return;  // nothing to map
  void* memory = mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE, file.value(), 0);
  if (memory == MAP_FAILED) throw Error(OB_INVALID_ARGUMENT, path + " cannot be read: " + std::strerror(errno));
  data_ = static_cast<const uint8_t*>(memory);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<uint8_t*>(data_), bytes_);
}

}  // namespace outboard
