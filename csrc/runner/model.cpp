// SPDX-License-Identifier: Apache-2.0
#include "runner/model.h"

#include <unistd.h>

#include <cstring>
#include <optional>

#include "runner/mapped_file.h"
#include "runtime/base/error.h"
#include "runtime/base/trusted_file.h"
#include "runtime/device.h"
#include "runtime/plans/plan_binaries.h"

namespace outboard {
namespace {

[[noreturn]] void refuse(const std::string& what) { throw Error(OB_INVALID_ARGUMENT, what); }

std::vector<int64_t> row_major(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> strides(sizes.size());
  int64_t step = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    strides[d] = step;
    // Too many elements are found by who computes their bytes.
    if (__builtin_mul_overflow(step, std::max<int64_t>(sizes[d], 1), &step)) step = INT64_MAX;
  }
  return strides;
}

std::string join(const std::vector<std::string>& texts) {
  std::string joined;
  for (const std::string& text : texts) joined += (joined.empty() ? "" : ", ") + text;
  return joined;
}

/// "[x.0 (1 to 64), 12]"
std::string describe(const ModelFile& file, const ModelFile::Argument& argument) {
  std::vector<std::string> texts;
  for (const ModelFile::Dimension& d : argument.sizes) {
    if (d.kind == ModelFile::Dimension::kFixed) {
      texts.push_back(std::to_string(d.value));
      continue;
    }
    const ModelFile::Symbol& symbol = file.symbols[static_cast<size_t>(d.value)];
    const std::string most = symbol.most == INT64_MAX ? "more" : std::to_string(symbol.most);
    texts.push_back(symbol.name + " (" + std::to_string(symbol.least) + " to " + most + ")");
  }
  return "[" + join(texts) + "]";
}

std::string shape_of(const ob_array& array) {
  std::vector<std::string> texts;
  for (uint32_t d = 0; d < array.rank; ++d) texts.push_back(std::to_string(array.sizes[d]));
  return "[" + join(texts) + "]";
}

void check_device(const ModelFile& file, const ob_device_properties& device) {
  const auto refuse_device = [&](const std::string& why) {
    throw Error(OB_UNSUPPORTED, "the model cannot run on " + std::string(device.name) + ": " + why);
  };
  if (file.dialect != device.dialect) {
    refuse_device("it is for devices with '" + file.dialect + "' programs, this one has '" + device.dialect + "'");
  }
  if ((file.needs & ModelFile::kHalf) != 0 && device.has_fp16 == 0) refuse_device("it needs half precision");
  if ((file.needs & ModelFile::kDouble) != 0 && device.has_fp64 == 0) refuse_device("it needs double precision");
  if ((file.needs & ModelFile::kInt64Atomics) != 0 && device.has_int64_atomics == 0) {
    refuse_device("it needs atomics on 64 bits");
  }
  if ((file.needs & ModelFile::kSubGroups) != 0 && device.sub_group_size <= 1) refuse_device("it needs sub-groups");
  if ((file.needs & ModelFile::kMatrixUnits) != 0 && device.matrix_units == 0) refuse_device("it needs matrix units");
}

std::string directory_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash + 1);
}

std::string weights_path(const ModelFile& file, const std::string& model, const std::string& chosen) {
  if (!chosen.empty()) return chosen;
  return file.weights_file.front() == '/' ? file.weights_file : directory_of(model) + file.weights_file;
}

/// A dense result of these sizes, zeros. Throws Error(OB_OUT_OF_MEMORY) if it is larger than the host's memory: a
/// result of a few elements can be spread to any size.
void make_room(HostArray& array) {
  const std::vector<int64_t> dense = row_major(array.sizes);
  const uint64_t bytes = span_bytes(array.sizes.data(), dense.data(), dense.size(), array.dtype);
  const auto memory = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  if (bytes > memory) {
    throw Error(OB_OUT_OF_MEMORY,
                "a result has " + std::to_string(bytes) + " bytes; this machine has " + std::to_string(memory));
  }
  array.data.resize(bytes);
}

/// Whether a result is what the file says: callers make room for it by that.
bool fits(const ModelFile& file, const ModelFile::Argument& expected, const HostArray& made) {
  if (expected.kind == ModelFile::Argument::kInt) return made.dtype == DType::kInt64 && made.sizes.empty();
  if (made.dtype != expected.dtype || made.sizes.size() != expected.sizes.size()) return false;
  for (size_t d = 0; d < made.sizes.size(); ++d) {
    const ModelFile::Dimension& size = expected.sizes[d];
    if (size.kind == ModelFile::Dimension::kAny) continue;
    const bool symbol = size.kind == ModelFile::Dimension::kSymbol;
    const int64_t least = symbol ? file.symbols[static_cast<size_t>(size.value)].least : size.value;
    const int64_t most = symbol ? file.symbols[static_cast<size_t>(size.value)].most : size.value;
    if (made.sizes[d] < least || made.sizes[d] > most) return false;
  }
  return true;
}

/// Waits for the stream when it goes: queued copies read memory of the caller's.
class Settled {
 public:
  explicit Settled(Stream& stream) : stream_(stream) {}
  Settled(const Settled&) = delete;
  Settled& operator=(const Settled&) = delete;
  ~Settled() { stream_.finish_in_the_end(); }

 private:
  Stream& stream_;
};

/// Copies `count` elements, row-major over `sizes`, out of strided memory.
void gather(uint8_t* to, const uint8_t* from, const std::vector<int64_t>& sizes, const Dims& strides, size_t count,
            size_t element) {
  std::vector<int64_t> index(sizes.size(), 0);
  uint64_t at = 0;  // strides of dimensions of size 1 mean nothing, and may wrap around
  for (size_t i = 0; i < count; ++i, to += element) {
    std::memcpy(to, from + at * element, element);
    for (size_t d = sizes.size(); d-- > 0;) {
      const auto stride = static_cast<uint64_t>(strides[d]);
      at += stride;
      if (++index[d] < sizes[d]) break;
      at -= stride * static_cast<uint64_t>(sizes[d]);
      index[d] = 0;
    }
  }
}

}  // namespace

Model::Model(const std::string& path, const std::string& weights, Device& device) : device_(device) {
  const MappedFile data(path);
  try {
    file_ = ModelFile::parse(data.data(), data.bytes());
    check_device(file_, device.properties());
    std::optional<MappedFile> external;
    if (!file_.weights_file.empty()) external.emplace(weights_path(file_, path, weights));
    const Settled settled(device.default_stream());
    for (const ModelFile::Weight& w : file_.weights) {
      if (w.external && !external) refuse(w.name + " is in another file, which is not named");
      const MappedFile& holder = w.external ? *external : data;
      const uint8_t* bytes = contents(w, holder.data(), holder.bytes());
      weights_.push_back(upload(bytes, w.nbytes, w.dtype, w.sizes, w.strides));
    }
    device.default_stream().synchronize();
  } catch (const Error& error) {
    throw Error(error.status(), path + " cannot be loaded: " + error.what());
  }
  // Kernels in a file that others can write are built from source: their source can do much, machine code everything.
  if (file_.device_key == device.properties().cache_key && trusted::is_trusted_file(path)) {
    offer_binaries(*file_.plan, device, file_.binaries);
  }
  executable_ = std::make_unique<Executable>(file_.plan, device);
  executable_->wait_until_built();
}

std::pair<std::vector<int64_t>, std::vector<int64_t>> Model::bounds(const ModelFile::Argument& argument) const {
  std::vector<int64_t> least, most;
  for (const ModelFile::Dimension& d : argument.sizes) {
    const bool symbol = d.kind == ModelFile::Dimension::kSymbol, any = d.kind == ModelFile::Dimension::kAny;
    const auto number = static_cast<size_t>(d.value);
    least.push_back(symbol ? file_.symbols[number].least : any ? 0 : d.value);
    most.push_back(symbol ? file_.symbols[number].most : any ? INT64_MAX : d.value);
  }
  return {least, most};
}

/// The caller's data in memory of ours, if the device may still read it when the caller has it back: a caller whose
/// wait failed need not keep its memory. nullptr where the host copies itself.
std::shared_ptr<HostBuffer> Model::stage(const void* data, uint64_t bytes) const {
  if (device_.host_accessible()) return nullptr;
  std::shared_ptr<HostBuffer> buffer = device_.residency().host_buffer(bytes);
  std::memcpy(buffer->memory, data, bytes);
  buffer->stream = &device_.default_stream();
  return buffer;
}

Model::DeviceTensor Model::upload(const void* data, uint64_t bytes, DType dtype, std::vector<int64_t> sizes,
                                  std::vector<int64_t> strides) const {
  OwnedAllocation allocation(Allocation::create_internal(device_, bytes));
  Stream& stream = device_.default_stream();
  if (bytes != 0) {
    const Pin pin(*allocation, stream, Access::kOverwrite);
    const std::shared_ptr<HostBuffer> staged = stage(data, bytes);
    const void* from = staged == nullptr ? data : staged->memory;
    stream.copy(OB_HOST_TO_DEVICE, pin.pointer(), reinterpret_cast<uint64_t>(from), bytes);
  }
  return {std::move(allocation), dtype, std::move(sizes), std::move(strides)};
}

/// The arrays in the order of the model's inputs.
std::vector<const ob_array*> Model::match(const ob_array* inputs, uint32_t count) const {
  std::vector<const ob_array*> found(file_.inputs.size(), nullptr);
  std::vector<std::string> names;
  for (const ModelFile::Argument& input : file_.inputs) names.push_back(input.name);
  for (uint32_t i = 0; i < count; ++i) {
    const std::string name = inputs[i].name != nullptr ? inputs[i].name : "";
    size_t number = 0;
    while (number < names.size() && names[number] != name) ++number;
    if (number == names.size()) refuse("the model has no input '" + name + "'; it takes " + join(names));
    if (found[number] != nullptr) refuse("input '" + name + "' is given twice");
    found[number] = &inputs[i];
  }
  for (size_t i = 0; i < found.size(); ++i) {
    if (found[i] == nullptr) refuse("input '" + names[i] + "' is missing; the model takes " + join(names));
  }
  return found;
}

void Model::check_shapes(const std::vector<const ob_array*>& inputs) const {
  std::vector<int64_t> values(file_.symbols.size(), -1);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const ModelFile::Argument& expected = file_.inputs[i];
    const ob_array& array = *inputs[i];
    bool fits = array.rank == expected.sizes.size();
    for (size_t d = 0; fits && d < array.rank; ++d) {
      const ModelFile::Dimension& size = expected.sizes[d];
      if (size.kind == ModelFile::Dimension::kFixed) {
        fits = array.sizes[d] == size.value;
        continue;
      }
      const auto number = static_cast<size_t>(size.value);
      const ModelFile::Symbol& symbol = file_.symbols[number];
      fits = array.sizes[d] >= symbol.least && array.sizes[d] <= symbol.most &&
             (values[number] == -1 || values[number] == array.sizes[d]);
      values[number] = array.sizes[d];
    }
    if (!fits) {
      refuse("input '" + expected.name + "' has shape " + shape_of(array) + "; the model takes " +
             describe(file_, expected));
    }
    if (static_cast<int>(array.dtype) != static_cast<int>(expected.dtype)) {
      refuse("input '" + expected.name + "' has element type " + std::to_string(array.dtype) + "; the model takes " +
             std::to_string(static_cast<int>(expected.dtype)) + " (ob_dtype)");
    }
    const std::vector<int64_t> sizes(array.sizes, array.sizes + array.rank);
    const uint64_t bytes = span_bytes(sizes.data(), row_major(sizes).data(), sizes.size(), expected.dtype);
    if (array.bytes != bytes || (bytes != 0 && array.data == nullptr)) {
      refuse("input '" + expected.name + "' has " + std::to_string(array.bytes) + " bytes of data, its shape needs " +
             std::to_string(bytes));
    }
  }
}

std::vector<HostArray> Model::run(const ob_array* inputs, uint32_t count) const {
  const std::vector<const ob_array*> arrays = match(inputs, count);
  check_shapes(arrays);
  Stream& stream = device_.default_stream();
  std::vector<DeviceTensor> tensors;
  const Settled settled(stream);  // before `tensors` go, too: work that uses them is over
  for (const ob_array* array : arrays) {
    const std::vector<int64_t> sizes(array->sizes, array->sizes + array->rank);
    tensors.push_back(upload(array->data, array->bytes, static_cast<DType>(array->dtype), sizes, row_major(sizes)));
  }
  std::vector<Input> bound(file_.plan_inputs.size());
  for (size_t i = 0; i < bound.size(); ++i) {
    const ModelFile::PlanInput& source = file_.plan_inputs[i];
    const DeviceTensor& t =
        source.source == ModelFile::PlanInput::kInput ? tensors[source.number] : weights_[source.number];
    bound[i].tensor = {t.allocation.get(), t.dtype,          static_cast<int32_t>(t.sizes.size()),
                       t.sizes.data(),     t.strides.data(), 0};
  }
  std::vector<Scalar> symbols;
  if (!executable_->bind(bound.data(), symbols)) {
    refuse("the model was compiled for other sizes than it got");
  }
  ExecutionContext context{stream, [](int64_t*, int64_t) {
                             throw Error(OB_UNSUPPORTED, "the model draws random numbers, which have no source here");
                           }};
  std::vector<Result> results;
  executable_->run(bound.data(), symbols, context, results);
  std::vector<OwnedAllocation> owned;
  for (const Result& result : results) {
    if (result.new_allocation) owned.emplace_back(result.allocation);
  }
  std::vector<HostArray> made;
  for (size_t i = 0; i < results.size(); ++i) {
    made.push_back(download(results[i], bound));
    if (!fits(file_, file_.outputs[i], made.back())) {
      refuse("result '" + file_.outputs[i].name + "' is not of the type and shape that the file says");
    }
  }
  return made;
}

HostArray Model::download(const Result& result, const std::vector<Input>& inputs) const {
  if (result.kind == Output::kInt) {
    HostArray number{DType::kInt64, {}, std::vector<uint8_t>(sizeof(int64_t))};
    std::memcpy(number.data.data(), &result.scalar.i, sizeof(int64_t));
    return number;
  }
  const TensorBinding input = result.new_allocation ? TensorBinding() : inputs[result.input].tensor;
  const bool whole = result.kind == Output::kInput;
  HostArray array{whole ? input.dtype : result.dtype, {}, {}};
  Dims strides = result.strides;
  array.sizes.assign(result.sizes.begin(), result.sizes.end());
  if (whole) {
    array.sizes.assign(input.sizes, input.sizes + input.dim);
    strides = Dims(static_cast<size_t>(input.dim));
    std::copy_n(input.strides, input.dim, strides.data());
  }
  const size_t element = element_size(array.dtype);
  const uint64_t bytes = span_bytes(array.sizes.data(), strides.data(), array.sizes.size(), array.dtype);
  const std::vector<int64_t> dense = row_major(array.sizes);
  make_room(array);
  if (array.data.empty()) return array;
  Allocation* allocation = result.new_allocation ? result.allocation : input.allocation;
  uint64_t begin = 0;  // a negative offset is too large a one
  const bool wraps = !whole && __builtin_mul_overflow(static_cast<uint64_t>(result.storage_offset), element, &begin);
  if (wraps || begin > allocation->size() || bytes > allocation->size() - begin) {
    throw Error(OB_INTERNAL, "a result lies outside its memory");
  }
  const bool straight = bytes == array.data.size() && std::equal(dense.begin(), dense.end(), strides.begin());
  const auto raw = std::make_shared<std::vector<uint8_t>>(bytes);
  Stream& stream = device_.default_stream();
  const Pin pin(*allocation, stream);
  lending(stream, raw, [&] {
    stream.copy(OB_DEVICE_TO_HOST, reinterpret_cast<uint64_t>(raw->data()), pin.pointer() + begin, bytes);
    stream.synchronize();
  });
  if (straight) {
    array.data.swap(*raw);
  } else {
    gather(array.data.data(), raw->data(), array.sizes, strides, array.data.size() / element, element);
  }
  return array;
}

}  // namespace outboard
