// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/trusted_file.h"

#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>
#include <vector>

namespace outboard::trusted {
namespace {

constexpr int kLook = O_PATH | O_NOFOLLOW | O_CLOEXEC;
constexpr int kMostLinks = 40;
constexpr char kAdvice[] =
    "make it yours alone (chown, chmod go-w), delete it, or set OUTBOARD_CACHE_DIR to a directory of your own";

/// A file descriptor that closes itself; negative if there is none.
class Descriptor {
 public:
  explicit Descriptor(int value = -1) : value_(value) {}
  Descriptor(Descriptor&& other) noexcept : value_(other.value_) { other.value_ = -1; }
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (value_ >= 0) close(value_);
  }
  int value() const { return value_; }
  bool valid() const { return value_ >= 0; }

 private:
  int value_;
};

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw Untrusted(path + " " + why + "; " + kAdvice);
}

/// What a user database has under a number: `get` is getpwuid_r or getgrgid_r.
template <typename Entry, typename Id, typename Get>
bool look_up(Get get, Id id, Entry& entry, std::vector<char>& memory) {
  for (memory.resize(4096); memory.size() <= (1u << 20); memory.resize(2 * memory.size())) {
    Entry* found = nullptr;
    const int code = get(id, &entry, memory.data(), memory.size(), &found);
    if (code != ERANGE) return code == 0 && found != nullptr;
  }
  return false;
}

/// Where there is an access control list, the group's rights are those of all that are in it.
bool has_access_list(int descriptor) {
  const std::string path = "/proc/self/fd/" + std::to_string(descriptor);
  return getxattr(path.c_str(), "system.posix_acl_access", nullptr, 0) > 0;
}

/// Whether the owner alone is in the group: many systems give each user one of the same name, and let it write.
bool is_private_group(const struct stat& status, int descriptor) {
  struct passwd owner{};
  struct group group{};
  std::vector<char> owner_memory, group_memory;
  if (status.st_gid == 0 || !look_up(getpwuid_r, status.st_uid, owner, owner_memory) ||
      !look_up(getgrgid_r, status.st_gid, group, group_memory)) {
    return false;
  }
  const std::string name = owner.pw_name;
  if (name != group.gr_name) return false;
  for (char** member = group.gr_mem; *member != nullptr; ++member) {
    if (name != *member) return false;
  }
  return !has_access_list(descriptor);
}

/// Throws Untrusted if somebody but the user and root owns or can write it. `sticky`: a directory in which everybody
/// has files of their own will do.
void check(const struct stat& status, int descriptor, const std::string& path, bool sticky) {
  if (status.st_uid != 0 && status.st_uid != geteuid()) {
    refuse(path, "belongs to another user (uid " + std::to_string(status.st_uid) + ")");
  }
  if (S_ISLNK(status.st_mode) || (sticky && S_ISDIR(status.st_mode) && (status.st_mode & S_ISVTX) != 0)) return;
  if ((status.st_mode & S_IWOTH) != 0) refuse(path, "can be written by everybody");
  if ((status.st_mode & S_IWGRP) != 0 && !is_private_group(status, descriptor)) {
    refuse(path, "can be written by its group (gid " + std::to_string(status.st_gid) + ")");
  }
}

std::vector<std::string> parts_of(const std::string& path) {
  std::vector<std::string> parts(1);
  for (const char c : path) {
    if (c != '/') {
      parts.back() += c;
    } else if (!parts.back().empty()) {
      parts.emplace_back();
    }
  }
  if (parts.back().empty()) parts.pop_back();
  return parts;
}

std::string absolute(const std::string& path) {
  if (!path.empty() && path.front() == '/') return path;
  char* folder = getcwd(nullptr, 0);
  const std::string here = folder != nullptr ? folder : "";
  std::free(folder);
  return here + "/" + path;
}

/// The directories from the root to where a path has led so far, each open, and what of the path is left.
class Way {
 public:
  explicit Way(const std::string& path) {
    push(parts_of(absolute(path)));
    names_.emplace_back();
    descriptors_.emplace_back(open("/", kLook | O_DIRECTORY));
    if (descriptors_.back().valid()) look(descriptors_.back().value(), "/", true);
  }

  /// The directory at the end; none if there is no such directory.
  Descriptor walk(bool make, bool shared) {
    while (!pending_.empty()) {
      if (!step(make)) return Descriptor();
    }
    const struct stat status = look(descriptors_.back().value(), here(), shared);
    return S_ISDIR(status.st_mode) ? std::move(descriptors_.back()) : Descriptor();
  }

 private:
  bool step(bool make) {
    const std::string name = std::move(pending_.back());
    pending_.pop_back();
    if (name == ".") return true;
    if (name == "..") return back(names_.size() > 1 ? names_.size() - 1 : 1);
    const int folder = descriptors_.back().value();
    Descriptor found(openat(folder, name.c_str(), kLook));
    // Another process may make it meanwhile; it is looked at like any other.
    if (!found.valid() && errno == ENOENT && make && (mkdirat(folder, name.c_str(), 0700) == 0 || errno == EEXIST)) {
      found = Descriptor(openat(folder, name.c_str(), kLook));
    }
    if (!found.valid()) return false;
    const struct stat status = look(found.value(), here() + "/" + name, true);
    if (S_ISLNK(status.st_mode)) return follow(found.value(), here() + "/" + name);
    names_.push_back(name);
    descriptors_.push_back(std::move(found));
    return true;
  }

  bool follow(int link, const std::string& path) {
    char target[PATH_MAX];
    const ssize_t length = readlinkat(link, "", target, sizeof(target));
    if (++links_ > kMostLinks) refuse(path, "is a link that leads to itself");
    if (length <= 0) return false;
    if (target[0] == '/') back(1);
    push(parts_of(std::string(target, static_cast<size_t>(length))));
    return true;
  }

  bool back(size_t length) {
    names_.resize(length);
    while (descriptors_.size() > length) descriptors_.pop_back();
    return true;
  }

  void push(const std::vector<std::string>& parts) { pending_.insert(pending_.end(), parts.rbegin(), parts.rend()); }

  std::string here() const {
    std::string path;
    for (size_t i = 1; i < names_.size(); ++i) path += "/" + names_[i];
    return path;
  }

  static struct stat look(int descriptor, const std::string& path, bool sticky) {
    struct stat status{};
    if (fstat(descriptor, &status) != 0) refuse(path, "cannot be looked at");
    check(status, descriptor, path.empty() ? "/" : path, sticky);
    return status;
  }

  std::vector<std::string> names_, pending_;
  std::vector<Descriptor> descriptors_;
  int links_ = 0;
};

struct Place {
  Descriptor folder;
  std::string name;
};

Place place_of(const std::string& path, bool make, bool shared = false) {
  const std::string whole = absolute(path);
  const size_t slash = whole.rfind('/');
  return {Way(whole.substr(0, slash)).walk(make, shared), whole.substr(slash + 1)};
}

/// The file, open for reading. None if there is none. `shared`: it may lie in a directory in which everybody has files
/// of their own. Throws Untrusted.
Descriptor open_file(const std::string& path, bool shared) {
  const Place place = place_of(path, false, shared);
  if (!place.folder.valid()) return Descriptor();
  // Without blocking: a pipe of this name would wait for a writer.
  Descriptor file(openat(place.folder.value(), place.name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file.valid() && errno == ELOOP) refuse(path, "is a symbolic link");
  if (!file.valid()) return file;
  struct stat status{};
  if (fstat(file.value(), &status) != 0 || !S_ISREG(status.st_mode)) refuse(path, "is no regular file");
  check(status, file.value(), path, false);
  return file;
}

bool write_all(int file, const std::string& content) {
  for (size_t done = 0; done < content.size();) {
    const ssize_t written = ::write(file, content.data() + done, content.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    done += static_cast<size_t>(written);
  }
  return true;
}

}  // namespace

std::optional<std::string> read(const std::string& path) {
  const Descriptor file = open_file(path, false);
  if (!file.valid()) return std::nullopt;
  std::string content;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t got = ::read(file.value(), buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return std::nullopt;
    if (got == 0) return content;
    content.append(buffer, static_cast<size_t>(got));
  }
}

bool write(const std::string& path, const std::string& content) {
  static std::atomic<uint64_t> serial{0};
  const Place place = place_of(path, true);
  if (!place.folder.valid()) return false;
  const int folder = place.folder.value();
  const std::string temporary = ".new" + std::to_string(getpid()) + "." + std::to_string(serial.fetch_add(1));
  constexpr int kNew = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  Descriptor file(openat(folder, temporary.c_str(), kNew, 0600));
  if (!file.valid() && errno == EEXIST) {  // of a process that had this number before and was killed
    unlinkat(folder, temporary.c_str(), 0);
    file = Descriptor(openat(folder, temporary.c_str(), kNew, 0600));
  }
  if (!file.valid()) return false;
  if (write_all(file.value(), content) && renameat(folder, temporary.c_str(), folder, place.name.c_str()) == 0) {
    return true;
  }
  unlinkat(folder, temporary.c_str(), 0);
  return false;
}

void mark_used(const std::string& path) noexcept {
  try {
    const Place place = place_of(path, false);
    if (!place.folder.valid()) return;
    // Nothing follows from failure: somebody deleted it, or the file system is only read.
    (void)utimensat(place.folder.value(), place.name.c_str(), nullptr, AT_SYMLINK_NOFOLLOW);
  } catch (const std::exception&) {
    // It was read a moment ago; the next reader reports what is wrong.
  }
}

bool is_trusted_file(const std::string& path) {
  char* real = realpath(path.c_str(), nullptr);
  const std::string resolved = real != nullptr ? real : path;
  std::free(real);
  try {
    return open_file(resolved, true).valid();
  } catch (const Untrusted&) {
    return false;
  }
}

bool is_trusted_directory(const std::string& path, bool shared) {
  try {
    return Way(path).walk(false, shared).valid();
  } catch (const Untrusted&) {
    return false;
  }
}

void say_once(const std::string& what, const Untrusted& why) {
  static std::mutex* const mutex = new std::mutex;  // leaked: threads outlive static destructors
  static std::set<std::string>* const said = new std::set<std::string>;
  const std::lock_guard lock(*mutex);
  if (said->insert(what).second) std::fprintf(stderr, "outboard: %s: %s\n", what.c_str(), why.what());
}

}  // namespace outboard::trusted
