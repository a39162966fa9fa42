#include "ddip/data_parallel/replicas.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ddip/base/error.h"

namespace ddip::data_parallel {
namespace {

constexpr uint64_t kBasis = 0xcbf29ce484222325, kPrime = 0x100000001b3;

// FNV-1a, eight bytes at a time: to tell replicas apart, not to keep anybody out.
uint64_t hash_of(const void* data, size_t bytes, uint64_t hash = kBasis) {
  const auto* at = static_cast<const unsigned char*>(data);
  for (; bytes >= 8; bytes -= 8, at += 8) {
    uint64_t word;
    std::memcpy(&word, at, 8);
    hash = (hash ^ word) * kPrime;
    hash ^= hash >> 29;
  }
  for (; bytes > 0; --bytes, ++at) hash = (hash ^ *at) * kPrime;
  return hash;
}

std::string shape_of(const at::Tensor& tensor) {
  return fmt::format("{} of {}", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), "×"));
}

// On the device that the communicator works with, if the tensors say one.
at::Tensor gathered(tensors::Communicator& ranks, const std::vector<int64_t>& numbers, const at::Device& device) {
  at::Tensor mine = at::tensor(numbers, at::kLong).to(device);
  return ranks.all_gather(mine).cpu();
}

at::Device device_of(const std::vector<at::Tensor>& tensors) {
  return tensors.empty() ? at::kCPU : tensors[0].device();
}

// By tensor, whether it is not the same bytes. All are on one device; a GPU is waited for once.
std::vector<bool> are_other(const std::vector<at::Tensor>& one, const std::vector<at::Tensor>& two) {
  std::vector<bool> other;
  if (one[0].is_cpu()) {
    for (size_t index = 0; index < one.size(); ++index) other.push_back(!at::equal(one[index], two[index]));
    return other;
  }
  std::vector<at::Tensor> flags;
  for (size_t index = 0; index < one.size(); ++index) flags.push_back((one[index] != two[index]).any());
  at::Tensor found = at::stack(flags).cpu();
  for (int64_t index = 0; index < found.numel(); ++index) other.push_back(found[index].item<bool>());
  return other;
}

}  // namespace

void require_same_shapes(tensors::Communicator& ranks, const std::vector<std::string>& names,
                         const std::vector<at::Tensor>& tensors) {
  at::Device device = device_of(tensors);
  at::Tensor counts = gathered(ranks, {static_cast<int64_t>(tensors.size())}, device);
  for (int rank = 1; rank < ranks.world(); ++rank) {
    if (counts[rank].item<int64_t>() != counts[0].item<int64_t>())
      throw ConfigError(fmt::format("the model has {} parameters on rank 0 and {} on rank {}",
                                    counts[0].item<int64_t>(), counts[rank].item<int64_t>(), rank));
  }
  if (tensors.empty()) return;
  std::vector<int64_t> hashes;
  for (size_t index = 0; index < tensors.size(); ++index) {
    // Strides too: gradients lie in memory as their parameters do.
    std::string text =
        fmt::format("{} {} {}", names[index], shape_of(tensors[index]), fmt::join(tensors[index].strides(), ","));
    hashes.push_back(static_cast<int64_t>(hash_of(text.data(), text.size())));
  }
  at::Tensor all = gathered(ranks, hashes, device);
  for (size_t index = 0; index < tensors.size(); ++index) {
    at::Tensor column = all.select(1, static_cast<int64_t>(index));
    if ((column == column[0]).all().item<bool>()) continue;
    throw ConfigError(fmt::format("parameter number {} differs between the ranks: on rank {} it is {}, {}, strides {}",
                                  index, ranks.rank(), names[index], shape_of(tensors[index]),
                                  fmt::join(tensors[index].strides(), ",")));
  }
}

void require_same_frozen(tensors::Communicator& ranks, const std::vector<std::string>& names,
                         const std::vector<at::Tensor>& tensors) {
  if (tensors.empty()) return;
  std::vector<int64_t> frozen;
  for (const at::Tensor& tensor : tensors) frozen.push_back(tensor.requires_grad() ? 0 : 1);
  const at::Tensor all = gathered(ranks, frozen, device_of(tensors));
  const auto is_frozen = all.accessor<int64_t, 2>();
  for (size_t index = 0; index < tensors.size(); ++index) {
    std::vector<int> on, off;
    for (int rank = 0; rank < ranks.world(); ++rank)
      (is_frozen[rank][static_cast<int64_t>(index)] != 0 ? on : off).push_back(rank);
    if (on.empty() || off.empty()) continue;
    auto named = [](const std::vector<int>& some) {
      return fmt::format("rank{} {}", some.size() == 1 ? "" : "s", fmt::join(some, ", "));
    };
    throw ConfigError(
        fmt::format("parameter {} is frozen (requires_grad=False) on {} and trained on {}: freeze it on "
                    "all ranks or on none",
                    names[index], named(on), named(off)));
  }
}

void require_no_complaint(tensors::Communicator& ranks, const std::string& complaint,
                          const std::vector<at::Tensor>& tensors) {
  const at::Tensor all = gathered(ranks, {complaint.empty() ? 0 : 1}, device_of(tensors));
  if (!complaint.empty()) throw ConfigError(complaint);
  for (int rank = 0; rank < ranks.world(); ++rank) {
    if (all[rank].item<int64_t>() != 0) throw ConfigError(fmt::format("rank {} refuses what it was given", rank));
  }
}

bool on_any(tensors::Communicator& ranks, bool here, const std::vector<at::Tensor>& tensors) {
  return gathered(ranks, {here ? 1 : 0}, device_of(tensors)).sum().item<int64_t>() > 0;
}

void broadcast_all(tensors::Communicator& ranks, const std::vector<at::Tensor>& tensors, int root) {
  at::NoGradGuard no_grad;
  std::vector<at::Device> devices;
  for (const at::Tensor& tensor : tensors) {
    if (std::find(devices.begin(), devices.end(), tensor.device()) == devices.end()) devices.push_back(tensor.device());
  }
  for (const at::Device& device : devices) {
    std::vector<at::Tensor> here, bytes;
    for (const at::Tensor& tensor : tensors) {
      if (tensor.device() != device || tensor.numel() == 0) continue;
      here.push_back(tensor);
      bytes.push_back(tensor.detach().contiguous().view({-1}).view(at::kByte));
    }
    if (here.empty()) continue;
    at::Tensor all = at::cat(bytes);
    ranks.broadcast(all, root);
    if (ranks.rank() == root) continue;
    std::vector<int64_t> lengths;
    for (const at::Tensor& tensor : here) lengths.push_back(static_cast<int64_t>(tensor.nbytes()));
    std::vector<at::Tensor> parts = all.split_with_sizes(lengths);
    std::vector<bool> other = are_other(parts, bytes);
    for (size_t index = 0; index < here.size(); ++index) {
      if (!other[index]) continue;
      const at::Tensor& tensor = here[index];
      // A piece that begins anywhere cannot be seen as another type.
      tensor.detach().copy_(parts[index].clone().view(tensor.scalar_type()).view(tensor.sizes()));
    }
  }
}

std::vector<bool> are_equal(tensors::Communicator& ranks, const std::vector<at::Tensor>& tensors) {
  if (tensors.empty()) return {};
  at::NoGradGuard no_grad;
  std::vector<int64_t> hashes;
  for (const at::Tensor& tensor : tensors) {
    at::Tensor here = tensor.detach().cpu().contiguous();
    std::string shape = shape_of(here);
    hashes.push_back(
        static_cast<int64_t>(hash_of(here.data_ptr(), here.nbytes(), hash_of(shape.data(), shape.size()))));
  }
  at::Tensor all = gathered(ranks, hashes, device_of(tensors));
  std::vector<bool> equal;
  for (size_t index = 0; index < tensors.size(); ++index) {
    at::Tensor column = all.select(1, static_cast<int64_t>(index));
    equal.push_back((column == column[0]).all().item<bool>());
  }
  return equal;
}

}  // namespace ddip::data_parallel
