// SPDX-License-Identifier: Apache-2.0
#include "runtime/program_cache.h"

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <vector>

#include "runtime/device.h"
#include "runtime/driver_call.h"
#include "runtime/sha256.h"

namespace outboard {
namespace {

namespace fs = std::filesystem;

struct Directory {
  std::mutex mutex;
  std::string path;
};

Directory& directory() {
  static Directory* const instance = new Directory;
  return *instance;
}

std::string directory_path() {
  std::lock_guard lock(directory().mutex);
  return directory().path;
}

/// A file's contents if it is whole: a digest in hexadecimal, a newline, the bytes. Empty otherwise.
std::string read_checked(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  constexpr size_t kDigest = 64;
  if (text.size() <= kDigest + 1 || text[kDigest] != '\n') return {};
  std::string payload = text.substr(kDigest + 1);
  return sha256_hex(payload) == text.substr(0, kDigest) ? payload : std::string();
}

/// Writes through a temporary file, so that readers see the old entry or the whole new one. Failure costs only
/// speed: the program stays in memory.
void write_checked(const fs::path& path, const std::string& payload) {
  static std::atomic<uint64_t> serial{0};
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  const fs::path temporary =
      path.string() + "." + std::to_string(getpid()) + "." + std::to_string(serial.fetch_add(1)) + ".tmp";
  std::ofstream file(temporary, std::ios::binary);
  file << sha256_hex(payload) << '\n' << payload;
  file.close();
  if (file.good()) fs::rename(temporary, path, error);
  if (!file.good() || error) fs::remove(temporary, error);
}

}  // namespace

struct ProgramCache::Impl {
  struct Entry {
    std::mutex building;  // other programs build meanwhile
    ob_program program = nullptr;
    std::map<std::string, ob_kernel> kernels;
    std::string offered;  // a binary to try first
  };

  explicit Impl(Device& device_) : device(device_) {}

  std::shared_ptr<Entry> entry(const std::string& key) {
    std::lock_guard lock(mutex);
    std::shared_ptr<Entry>& found = entries[key];
    if (!found) found = std::make_shared<Entry>();
    return found;
  }

  std::string key(const std::string& source, const std::string& options) const {
    return sha256_hex(source + '\0' + options + '\0' + device.properties().cache_key);
  }

  /// The kernel from a binary, if that is one of a program that has it.
  bool load(const std::string& binary, const std::string& name, Entry& entry) {
    if (binary.empty()) return false;
    const ob_driver& driver = device.driver();
    ob_program program = nullptr;
    if (driver.program_load(device.handle(), binary.data(), binary.size(), &program) != OB_OK) return false;
    ob_kernel kernel = nullptr;
    if (driver.kernel_get(program, name.c_str(), &kernel) != OB_OK) {
      driver.program_release(program);
      return false;
    }
    entry.program = program;
    entry.kernels[name] = kernel;
    return true;
  }

  /// The same from disk.
  bool load_file(const fs::path& path, const std::string& name, Entry& entry) {
    if (!load(read_checked(path), name, entry)) return false;
    ++loaded;
    return true;
  }

  void build(const std::string& source, const std::string& options, Entry& entry) {
    const ob_driver& driver = device.driver();
    check(driver, driver.program_build(device.handle(), source.c_str(), options.c_str(), &entry.program),
          "building a program");
    ++built;
  }

  /// Empty if the driver gives none.
  std::string binary(ob_program program) {
    size_t bytes = 0;
    if (device.driver().program_binary(program, nullptr, &bytes) != OB_OK) return {};
    std::string binary(bytes, '\0');
    if (device.driver().program_binary(program, binary.data(), &bytes) != OB_OK) return {};
    return binary;
  }

  Device& device;
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<Entry>> entries;
  std::atomic<int64_t> built{0}, loaded{0};
};

ProgramCache::ProgramCache(Device& device) : impl_(std::make_shared<Impl>(device)) {}

ob_kernel ProgramCache::kernel(const std::string& source, const std::string& options, const std::string& entry) {
  refuse_in_forked_child();
  const std::string key = impl_->key(source, options);
  const std::shared_ptr<Impl::Entry> program = impl_->entry(key);
  std::lock_guard lock(program->building);
  if (program->program == nullptr && !impl_->load(program->offered, entry, *program)) {
    const std::string base = directory_path();
    const fs::path path = fs::path(base) / "programs" / key.substr(0, 2) / (key + ".bin");
    if (base.empty() || !impl_->load_file(path, entry, *program)) {
      impl_->build(source, options, *program);
      const std::string made = base.empty() ? std::string() : impl_->binary(program->program);
      if (!made.empty()) write_checked(path, made);
    }
  }
  program->offered.clear();  // it has served
  ob_kernel& kernel = program->kernels[entry];
  if (kernel == nullptr) {
    check(impl_->device.driver(), impl_->device.driver().kernel_get(program->program, entry.c_str(), &kernel),
          "finding a kernel");
  }
  return kernel;
}

void ProgramCache::offer(const std::string& source, const std::string& options, const std::string& binary) {
  refuse_in_forked_child();
  const std::shared_ptr<Impl::Entry> program = impl_->entry(impl_->key(source, options));
  std::lock_guard lock(program->building);
  if (program->program == nullptr) program->offered = binary;
}

std::string ProgramCache::binary(const std::string& source, const std::string& options) {
  refuse_in_forked_child();
  const std::shared_ptr<Impl::Entry> program = impl_->entry(impl_->key(source, options));
  std::lock_guard lock(program->building);
  return program->program == nullptr ? std::string() : impl_->binary(program->program);
}

void ProgramCache::set_directory(const std::string& path) {
  std::lock_guard lock(directory().mutex);
  directory().path = path;
}

ProgramCache::Statistics ProgramCache::statistics() const { return {impl_->built, impl_->loaded}; }

}  // namespace outboard
