#include "ddip/pipeline/gather.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "ddip/base/error.h"
#include "ddip/pipeline/frame.h"

namespace ddip::pipeline {

using nlohmann::json;

std::vector<std::string> gather_bytes(tensors::Communicator& ranks, const std::string& mine) {
  at::Tensor sizes = ranks.all_gather(at::full({1}, static_cast<int64_t>(mine.size()), at::kLong)).view({-1});
  const auto* size = sizes.const_data_ptr<int64_t>();
  at::Tensor padded = at::zeros({std::max<int64_t>(1, sizes.max().item<int64_t>())}, at::kByte);
  std::memcpy(padded.mutable_data_ptr(), mine.data(), mine.size());
  at::Tensor every = ranks.all_gather(padded);
  std::vector<std::string> found;
  for (int rank = 0; rank < ranks.world(); ++rank)
    found.emplace_back(reinterpret_cast<const char*>(every[rank].const_data_ptr()), static_cast<size_t>(size[rank]));
  return found;
}

std::vector<json> gather_json(tensors::Communicator& ranks, const json& mine) {
  std::string packed;
  json::to_msgpack(mine, packed);  // JSON's text has no word for a loss that is not finite
  std::vector<json> found;
  for (const std::string& theirs : gather_bytes(ranks, packed)) found.push_back(json::from_msgpack(theirs));
  return found;
}

std::vector<json> agreed(tensors::Communicator& ranks, const std::function<json()>& work) {
  json mine{{"failure", ""}, {"said", nullptr}};
  try {
    mine["said"] = work();
  } catch (const std::exception& error) {
    const std::string text = error.what();
    mine["failure"] = text.substr(0, text.find('\n'));
  }
  const std::vector<json> all = gather_json(ranks, mine);
  if (mine["failure"] != "") throw ConfigError(mine["failure"].get<std::string>());
  std::vector<json> said;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank]["failure"] != "")
      throw ConfigError(fmt::format("rank {}: {}", rank, all[rank]["failure"].get<std::string>()));
    said.push_back(all[rank]["said"]);
  }
  return said;
}

NamedTensors gather_tensors(tensors::Communicator& ranks, const NamedTensors& mine) {
  Value::Dict entries;
  for (const auto& [name, tensor] : mine) entries.entries.push_back({name, Value{tensor.detach().cpu()}});
  Message message{.value = Value{std::move(entries)}};
  Packed packed = measure(message);
  std::string bytes(packed.bytes, '\0');
  write_frame(message, packed, packed.bytes, reinterpret_cast<std::byte*>(bytes.data()));
  NamedTensors whole;
  for (std::string& theirs : gather_bytes(ranks, bytes)) {
    const Header header = read_header(reinterpret_cast<const std::byte*>(theirs.data()));
    // On a boundary that tensors like; what is read are views of it.
    at::Tensor memory = at::empty({static_cast<int64_t>(header.body)}, at::kByte);
    std::memcpy(memory.mutable_data_ptr(), theirs.data() + kHeaderBytes, header.body);
    std::shared_ptr<std::byte> body(static_cast<std::byte*>(memory.mutable_data_ptr()), [memory](std::byte*) {});
    Message there = read_frame(header, body);
    for (auto& [name, value] : std::get<Value::Dict>(there.value.content).entries)
      whole[name] = value.tensor()->clone();
  }
  return whole;
}

}  // namespace ddip::pipeline
