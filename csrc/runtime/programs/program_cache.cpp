// SPDX-License-Identifier: Apache-2.0
#include "runtime/programs/program_cache.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <future>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime/base/driver_call.h"
#include "runtime/base/sha256.h"
#include "runtime/base/shared_path.h"
#include "runtime/base/trusted_file.h"
#include "runtime/device.h"
#include "runtime/programs/build_process.h"
#include "runtime/programs/builders.h"
#include "runtime/programs/shipped_programs.h"

namespace outboard {
namespace {

SharedPath& directory() {
  static SharedPath* const instance = new SharedPath;
  return *instance;
}

/// A program's binary with what it is a binary of, so that one under another's name is noticed: a digest in hexadecimal
/// of the rest, the program's key, the binary, with newlines between. Empty stays empty.
std::string sealed(const std::string& key, const std::string& binary) {
  if (binary.empty()) return {};
  const std::string body = key + '\n' + binary;
  return sha256_hex(body) + '\n' + body;
}

/// The binary in what `sealed` made for this key; empty if it is damaged or another program's.
std::string unsealed(const std::string& key, const std::string& content) {
  constexpr size_t kDigest = 64;
  const size_t begin = kDigest + 1 + key.size() + 1;
  if (content.size() <= begin || content[kDigest] != '\n') return {};
  const std::string body = content.substr(kDigest + 1);
  if (body.compare(0, key.size(), key) != 0 || body[key.size()] != '\n') return {};
  return sha256_hex(body) == content.substr(0, kDigest) ? body.substr(key.size() + 1) : std::string();
}

/// A program's binary from disk; empty if there is none that can be trusted.
std::string read_binary(const std::string& path, const std::string& key) {
  try {
    return unsealed(key, trusted::read(path).value_or(std::string()));
  } catch (const trusted::Untrusted& why) {
    trusted::say_once("compiled programs are not used", why);
    return {};
  }
}

/// Failure costs only speed: the program stays in memory.
void write_binary(const std::string& path, const std::string& key, const std::string& binary) {
  if (binary.empty()) return;
  try {
    trusted::write(path, sealed(key, binary));
  } catch (const trusted::Untrusted& why) {
    trusted::say_once("compiled programs are not kept", why);
  }
}

/// Programs that wait when another process is started. That takes as long as building a few of them: it too has to load
/// a compiler and its library.
constexpr int64_t kWorthAProcess = 6;

struct Counters {
  std::atomic<int64_t> built{0}, elsewhere{0}, loaded{0}, waiting{0}, held{0};
};

/// As `ProgramCache::keep_unused` says.
std::atomic<size_t> most_unused{1024};

/// The right to build in this process, for those whose builds would only wait for each other: one thread has it. The
/// others ask other processes.
class Turn {
 public:
  Turn() : mine_(!taken_.exchange(true)) {}
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  ~Turn() {
    if (mine_) taken_ = false;
  }
  bool mine() const { return mine_; }

 private:
  inline static std::atomic<bool> taken_{false};
  const bool mine_;
};

}  // namespace

namespace {

/// What a program's text is.
enum class Form : char { kSource = 's', kBinary = 'b' };

}  // namespace

/// A program by source and options, or by its binary, and the attempt to get it that is under way or has succeeded.
struct Kernel::Program {
  Program(Device& device_, Form form_, std::string source_, std::string options_, std::string key_,
          std::shared_ptr<Counters> counters_)
      : device(device_),
        form(form_),
        source(std::move(source_)),
        options(std::move(options_)),
        key(std::move(key_)),
        counters(std::move(counters_)) {}
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  ~Program() {
    if (in_forked_child.load(std::memory_order_relaxed)) return;
    for (ob_program program : replaced) end(program);
    if (!current.valid()) return;
    try {
      end(current.get());
    } catch (const Error&) {  // there is no program: who asked for it was told
    }
  }

  /// The attempt under way; begins one if there is none. `name` is a kernel that the program must have.
  std::shared_future<ob_program> attempt(const std::string& name) {
    std::shared_ptr<std::packaged_task<ob_program()>> task;
    std::shared_future<ob_program> begun;
    {
      std::lock_guard lock(mutex);
      if (current.valid()) return current;
      task = std::make_shared<std::packaged_task<ob_program()>>([this, name] { return make_and_release(name); });
      begun = current = task->get_future().share();
    }
    ++counters->waiting;
    retain();
    Builders::get().run([task, counters = counters] {  // here and now, once there are no such threads any more
      (*task)();
      --counters->waiting;
    });
    return begun;
  }

  void retain() noexcept { uses.fetch_add(1, std::memory_order_relaxed); }
  void release() noexcept { uses.fetch_sub(1, std::memory_order_release); }
  /// Whether somebody uses it, builds it, or has offered what it is to be made of. Under the cache's lock, without
  /// which nobody begins to.
  bool in_use() {
    if (uses.load(std::memory_order_acquire) != 0) return true;
    std::lock_guard lock(mutex);
    return !offered.empty();
  }

  /// A sealed binary to try first, unless an attempt has begun.
  void offer(const std::string& content) {
    std::lock_guard lock(mutex);
    if (!current.valid()) offered = unsealed(key, content);
  }

  /// The binary of the program, sealed, once it is there. Empty if nobody asked for it, it failed, or the driver gives
  /// none.
  std::string binary() { return sealed(key, raw_binary()); }

  /// The same as the driver gives it.
  std::string raw_binary() {
    std::shared_future<ob_program> attempt;
    {
      std::lock_guard lock(mutex);
      attempt = current;
    }
    return attempt.valid() ? binary_of(device.driver(), attempt.get()) : std::string();
  }

  /// What names the program among those that come with Outboard.
  std::string digest() const { return program_digest(source, options, device.driver().name); }

  ob_program wait(const std::string& name) {
    try {
      return attempt(name).get();
    } catch (const Error&) {
      forget_attempt();
      throw;
    }
  }

  Kernel& kernel(const std::string& name) {
    std::lock_guard lock(mutex);
    std::unique_ptr<Kernel>& found = kernels[name];
    if (found == nullptr) found = std::make_unique<Kernel>(*this, name);
    return *found;
  }

  /// A kernel of the program, which is built from source if what was loaded in its place turns out not to have it.
  ob_kernel handle(const std::string& name) {
    ob_program program = wait(name);
    ob_kernel kernel = nullptr;
    if (device.driver().kernel_get(program, name.c_str(), &kernel) == OB_OK) return kernel;
    if (give_up_binary(program)) program = wait(name);
    check(device.driver(), device.driver().kernel_get(program, name.c_str(), &kernel), "finding a kernel");
    return kernel;
  }

  /// The most work-items in one of the kernel's work-groups. Throws Error(OB_INVALID_ARGUMENT) if the kernel needs more
  /// local memory than there is.
  uint32_t max_group(ob_kernel kernel, const std::string& name) const {
    const DeviceDriver& driver = device.driver();
    const ob_device_properties& limits = device.properties();
    if (driver.kernel_properties == nullptr) return limits.max_work_group_size;
    ob_kernel_properties needs{sizeof(needs), limits.max_work_group_size, 0};
    check(driver, driver.kernel_properties(kernel, &needs), "asking what a kernel needs");
    if (needs.local_memory <= limits.local_memory) return needs.max_work_group_size;
    throw Error(OB_INVALID_ARGUMENT, "the kernel " + name + " needs " + std::to_string(needs.local_memory) +
                                         " bytes of local memory, and the device has " +
                                         std::to_string(limits.local_memory));
  }

 private:
  /// After a failure: the next caller tries again.
  void forget_attempt() {
    std::lock_guard lock(mutex);
    if (is_done(current)) current = {};
  }

  /// Has the next attempt build from source, if the program was loaded. It lives on: there may be work that uses it.
  /// False if it was built here.
  bool give_up_binary(ob_program program) {
    std::lock_guard lock(mutex);
    const bool again = !from_source && program != built_here;
    from_source = true;
    if (again && is_done(current)) {
      replaced.push_back(program);
      current = {};
    }
    return program != built_here;
  }

  static bool is_done(const std::shared_future<ob_program>& attempt) {
    return attempt.valid() && attempt.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }

  /// The use that the attempt has ends before others see what became of it: they may be who ends the program.
  ob_program make_and_release(const std::string& name) {
    struct Use {
      Program& program;
      ~Use() { program.release(); }
    } use{*this};
    const ob_program made = make(name);
    ++counters->held;
    return made;
  }

  void end(ob_program program) {
    device.driver().program_release(program);
    --counters->held;
  }

  ob_program make(const std::string& name) {
    if (form == Form::kBinary) return load_given();
    const std::string base = directory().get();
    const std::string path = base.empty() ? "" : base + "/programs/" + key.substr(0, 2) + "/" + key + ".bin";
    const bool loads = may_load();
    if (loads) {
      if (ob_program loaded = load(take_offer(), name)) return loaded;
      if (ob_program loaded = path.empty() ? nullptr : load_file(path, name)) return loaded;
      if (ob_program loaded = load_shipped(name)) return loaded;
    }
    const Turn turn;
    if (loads && device.properties().serial_builds != 0 && !turn.mine()) {
      if (ob_program fetched = fetch(path, name)) return fetched;
    }
    ob_program built = build();
    if (!path.empty()) write_binary(path, key, binary_of(device.driver(), built));
    return built;
  }

  /// The program, built by another process; nullptr if that does not work out, whatever the reason. `path`: where to
  /// keep it, or empty.
  ob_program fetch(const std::string& path, const std::string& name) const {
    if (!BuildProcess::on_this_thread() && counters->waiting < kWorthAProcess) return nullptr;
    const std::string binary = BuildProcess::build_on_this_thread(device, source, options);
    const ob_program program = load(binary, name);
    if (program == nullptr) return nullptr;
    ++counters->built;
    ++counters->elsewhere;
    if (!path.empty()) write_binary(path, key, binary);
    return program;
  }

  bool may_load() {
    std::lock_guard lock(mutex);
    return !from_source;
  }

  std::string take_offer() {
    std::lock_guard lock(mutex);
    return std::exchange(offered, {});
  }

  /// The program from a binary if that has the kernel, else nullptr.
  ob_program load(const std::string& binary, const std::string& name) const {
    if (binary.empty()) return nullptr;
    const DeviceDriver& driver = device.driver();
    ob_program program = nullptr;
    if (driver.program_load(device.handle(), binary.data(), binary.size(), &program) != OB_OK) return nullptr;
    ob_kernel kernel = nullptr;
    if (driver.kernel_get(program, name.c_str(), &kernel) == OB_OK) return program;
    driver.program_release(program);
    return nullptr;
  }

  /// The same from disk.
  ob_program load_file(const std::string& path, const std::string& name) const {
    const ob_program program = load(read_binary(path, key), name);
    if (program == nullptr) return nullptr;
    ++counters->loaded;
    trusted::mark_used(path);
    return program;
  }

  /// The same of what came with Outboard.
  ob_program load_shipped(const std::string& name) const {
    for (const std::string& binary : ShippedPrograms::find(digest())) {
      if (const ob_program program = load(binary, name)) {
        ++counters->loaded;
        return program;
      }
    }
    return nullptr;
  }

  /// The program that was brought as a binary.
  ob_program load_given() {
    const DeviceDriver& driver = device.driver();
    ob_program program = nullptr;
    check(driver, driver.program_load(device.handle(), source.data(), source.size(), &program), "loading a program");
    std::lock_guard lock(mutex);
    return built_here = program;
  }

  ob_program build() {
    const DeviceDriver& driver = device.driver();
    ob_program program = nullptr;
    check(driver, driver.program_build(device.handle(), source.c_str(), options.c_str(), &program),
          "building a program");
    ++counters->built;
    std::lock_guard lock(mutex);
    return built_here = program;
  }

  Device& device;
  const Form form;
  const std::string source, options, key;  // `source`: the binary, of that form
  const std::shared_ptr<Counters> counters;
  std::atomic<int64_t> uses{0};
  std::mutex mutex;
  std::shared_future<ob_program> current;
  ob_program built_here = nullptr;   // `current`, unless it was loaded in place of one that is built
  bool from_source = false;          // what could be loaded is not the program
  std::vector<ob_program> replaced;  // what was loaded all the same
  std::string offered;
  std::map<std::string, std::unique_ptr<Kernel>> kernels;
};

void Kernel::retain() const noexcept { program_.retain(); }
void Kernel::release() const noexcept { program_.release(); }

std::string Kernel::binary() {
  get();
  return program_.raw_binary();
}

ob_kernel Kernel::wait() {
  const ob_kernel handle = program_.handle(name_);
  const uint32_t max_group = program_.max_group(handle, name_);
  max_group_.store(max_group, std::memory_order_relaxed);
  handle_.store(handle, std::memory_order_release);
  return handle;
}

void Kernel::refuse_group(const uint32_t local[3]) const {
  throw Error(OB_INVALID_ARGUMENT, "the kernel " + name_ + " is to run in work-groups of " +
                                       std::to_string(uint64_t{local[0]} * local[1] * local[2]) +
                                       " work-items, and can run in work-groups of at most " +
                                       std::to_string(max_group_.load(std::memory_order_relaxed)));
}

namespace {

using ProgramUse = Use<Kernel::Program>;
using Programs = std::vector<std::unique_ptr<Kernel::Program>>;

/// Programs that nobody will launch any more, and the streams that may have launches of them.
struct Leaving {
  Programs programs;
  std::vector<Stream*> busy;

  /// Whether all those launches are over. Waits for none of them: they may wait for other processes.
  bool is_over() {
    busy.erase(std::remove_if(busy.begin(), busy.end(), [](Stream* each) { return each->surely_finished(); }),
               busy.end());
    return busy.empty();
  }
};

}  // namespace

struct ProgramCache::Impl {
  explicit Impl(Device& device_) : device(device_) {}

  ProgramUse program(const std::string& source, const std::string& options, Form form = Form::kSource) {
    std::string text = source + '\0' + options + '\0' + device.properties().cache_key;
    if (form == Form::kBinary) text += static_cast<char>(form);
    const std::string key = sha256_hex(text);
    Programs gone;  // behind the lock: drivers may take long
    std::lock_guard lock(mutex);
    std::unique_ptr<Kernel::Program>& found = programs[key];
    if (found != nullptr) return ProgramUse(*found);
    found = std::make_unique<Kernel::Program>(device, form, source, options, key, counters);
    ProgramUse use(*found);
    gone = make_room();
    return use;
  }

  /// Parts with programs that nobody uses, if there may be more of them than are kept. Returns those that may end.
  /// Under the lock.
  Programs make_room() {
    const size_t most = most_unused.load(std::memory_order_relaxed);
    if (programs.size() >= used + std::max<size_t>(most, 1)) {
      Leaving next;
      for (auto at = programs.begin(); at != programs.end();) {
        if (at->second->in_use()) {
          ++at;
          continue;
        }
        next.programs.push_back(std::move(at->second));
        at = programs.erase(at);
      }
      used = programs.size();
      next.busy = device.queues();
      if (!next.programs.empty()) leaving.push_back(std::move(next));
    }
    Programs gone;
    while (!leaving.empty() && leaving.front().is_over()) {
      std::move(leaving.front().programs.begin(), leaving.front().programs.end(), std::back_inserter(gone));
      leaving.pop_front();
    }
    return gone;
  }

  Device& device;
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<Kernel::Program>> programs;
  size_t used = 0;  // programs, when it was looked last
  std::deque<Leaving> leaving;
  const std::shared_ptr<Counters> counters = std::make_shared<Counters>();
};

ProgramCache::ProgramCache(Device& device) : impl_(std::make_shared<Impl>(device)) {}

KernelUse ProgramCache::kernel(const std::string& source, const std::string& options, const std::string& entry) {
  refuse_if_unusable(impl_->device.driver());
  const ProgramUse program = impl_->program(source, options);
  program->attempt(entry);
  return KernelUse(program->kernel(entry));
}

KernelUse ProgramCache::kernel_of(const std::string& binary, const std::string& entry) {
  refuse_if_unusable(impl_->device.driver());
  return KernelUse(impl_->program(binary, {}, Form::kBinary)->kernel(entry));
}

void ProgramCache::offer(const std::string& source, const std::string& options, const std::string& binary) {
  refuse_in_forked_child();
  impl_->program(source, options)->offer(binary);
}

std::string ProgramCache::binary(const std::string& source, const std::string& options) {
  refuse_in_forked_child();
  return impl_->program(source, options)->binary();
}

std::map<std::string, std::string> ProgramCache::binaries() {
  refuse_in_forked_child();
  std::vector<ProgramUse> programs;
  {
    const std::lock_guard lock(impl_->mutex);
    for (const auto& [key, program] : impl_->programs) programs.emplace_back(*program);
  }
  std::map<std::string, std::string> made;
  for (const ProgramUse& program : programs) {
    if (std::string binary = program->raw_binary(); !binary.empty()) made[program->digest()] = std::move(binary);
  }
  return made;
}

void ProgramCache::keep_unused(size_t count) { most_unused.store(count, std::memory_order_relaxed); }

void ProgramCache::stop() noexcept { Builders::get().stop(); }

void ProgramCache::drop_waiting() noexcept { Builders::get().drop(); }

void ProgramCache::set_directory(const std::string& path) { directory().set(path); }

ProgramCache::Statistics ProgramCache::statistics() const {
  const Counters& counters = *impl_->counters;
  return {counters.built, counters.elsewhere, counters.loaded, counters.waiting, counters.held};
}

}  // namespace outboard
