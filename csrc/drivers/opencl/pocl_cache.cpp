// SPDX-License-Identifier: Apache-2.0
#include "opencl/pocl_cache.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "common/kernel_library.h"
#include "runtime/base/trusted_file.h"

namespace outboard::opencl {
namespace {

namespace fs = std::filesystem;

std::string variable(const char* name) {
  const char* text = std::getenv(name);
  return text != nullptr ? text : "";
}

/// Where PoCL keeps its cache by itself. Without a home that is a place below /tmp that everybody can guess: none.
fs::path usual_place() {
  const std::string cache = variable("XDG_CACHE_HOME"), home = variable("HOME");
  if (!cache.empty()) return fs::path(cache) / "pocl" / "kcache";
  return home.empty() ? fs::path() : fs::path(home) / ".cache" / "pocl" / "kcache";
}

/// The directory, or where it would be made.
fs::path existing_part(fs::path folder) {
  std::error_code error;
  folder = fs::absolute(folder, error);
  while (!folder.empty() && folder != folder.root_path() && !fs::exists(folder, error)) folder = folder.parent_path();
  return folder;
}

bool is_writable(const fs::path& folder) { return access(existing_part(folder).c_str(), W_OK | X_OK) == 0; }

/// Whether this process can write where PoCL is to keep its cache. PoCL ends the process (an assertion) if it cannot.
/// Where the user chose, that is all; elsewhere, nobody else may be able to.
bool is_usable() {
  const std::string chosen = variable("POCL_CACHE_DIR");
  if (!chosen.empty()) return is_writable(chosen);
  const fs::path place = usual_place();
  return !place.empty() && is_writable(place) && trusted::is_trusted_directory(existing_part(place), true);
}

/// The directory that was made for this process, and its number: forked ones leave it to it.
struct OwnPlace {
  std::string path;
  pid_t owner = 0;
};
OwnPlace& own_place() {
  static OwnPlace* const instance = new OwnPlace;
  return *instance;
}

void remove_own_place() {
  std::error_code error;
  if (getpid() == own_place().owner) fs::remove_all(own_place().path, error);
}

}  // namespace

void place_pocl_cache() {
  if (is_usable()) return;
  std::string path = common::trusted_temporary_folder() + "/outboard-pocl-XXXXXX";
  if (mkdtemp(path.data()) == nullptr) return;  // nowhere to write: PoCL will say so
  own_place() = {path, getpid()};
  setenv("POCL_CACHE_DIR", path.c_str(), 1);
  std::atexit(remove_own_place);
}

}  // namespace outboard::opencl
