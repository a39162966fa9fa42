#include "ddip/pipeline/saving.h"

#include <fmt/format.h>

#include "ddip/base/error.h"
#include "ddip/checkpoint/store.h"
#include "ddip/pipeline/optimizer_state.h"
#include "ddip/pipeline/saved_cut.h"
#include "ddip/tensors/tensor_bytes.h"

namespace ddip::pipeline {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kWhat = "ddip pipeline";
constexpr const char* kPythons = "ddip pipeline of Python";

std::string part_of(int rank) { return fmt::format("rank-{}", rank); }

// --- what is the same on all ranks, in the manifest

json about_pipeline(const RankOnDisk& rank) {
  const Settings& settings = rank.settings;
  return {{"what", kWhat},
          {"stages", settings.request.stages},
          {"ranks", rank.ranks.world()},
          {"replicas", settings.options.replicas},
          {"placement", settings.request.rank_of_stage},
          {"staleness", settings.policy()},
          {"layers", rank.layers}};
}

// By stage; a stage that has nothing to train is not in it.
json optimizers_of(const RankOnDisk& rank) {
  json found = json::object();
  for (const StageOnDisk& stage : rank.stages) {
    try {
      if (stage.stepping) found[std::to_string(stage.index)] = kind_of(stage.stepping->optimizer());
    } catch (const ConfigError& error) {
      throw ConfigError(fmt::format("stage {}: {}", stage.index, error.what()));
    }
  }
  return found;
}

void require_same(const json& saved, const json& here, const std::string& what) {
  if (saved == here) return;
  auto text = [](const json& one) { return one.is_string() ? one.get<std::string>() : one.dump(); };
  throw ConfigError(fmt::format("it was saved with {} {}, here it is {}", what, text(saved), text(here)));
}

void require_same_pipeline(const json& saved, const RankOnDisk& rank) {
  if (saved.value("what", "") == kPythons)
    throw ConfigError("Python's pipe.save wrote it; expected a pipeline of a C++ program");
  if (saved.value("what", "") != kWhat) throw ConfigError("it has checkpoints, but of no pipeline");
  const json here = about_pipeline(rank);
  require_same_cut(saved.value("layers", json()), here["layers"]);
  for (const char* what : {"stages", "ranks", "replicas", "placement", "staleness"})
    require_same(saved.at(what), here.at(what), what);
  const json optimizers = optimizers_of(rank);
  for (const StageOnDisk& stage : rank.stages) {
    const std::string index = std::to_string(stage.index);
    require_same(saved.at("optimizers").value(index, "none"), optimizers.value(index, "none"),
                 fmt::format("stage {}'s optimizer", index));
  }
}

// --- what a rank has of its own, in its file

NamedTensors rank_state(const RankOnDisk& rank) {
  NamedTensors found;
  for (const StageOnDisk& stage : rank.stages) found.merge(stage_state(stage));
  const Heard heard = rank.executor.heard();
  if (heard.scale) {
    const auto& [scale, finite, under_way] = *heard.scale;
    found["loss_scale.now"] = at::scalar_tensor(scale, at::kDouble);
    found["loss_scale.finite"] = at::scalar_tensor(finite, at::kLong);
    found["loss_scale.under_way"] = at::tensor(under_way, at::kDouble);
  }
  std::vector<int64_t> steps;
  std::vector<double> squares;
  for (const auto& [step, square] : heard.squares) {
    steps.push_back(step);
    squares.push_back(square);
  }
  found["norms.steps"] = at::tensor(steps, at::kLong);
  found["norms.squares"] = at::tensor(squares, at::kDouble);
  return found;
}

std::map<int64_t, double> saved_squares(SavedTensors& saved) {
  std::map<int64_t, double> squares;
  NamedTensors found = saved.take_under("norms.");
  if (found.empty()) return squares;
  const int64_t count = found.begin()->second.numel();
  SavedTensors named(std::move(found));
  const at::Tensor steps = named.take("steps", at::kLong, {count}), sums = named.take("squares", at::kDouble, {count});
  named.require_none_under("");
  for (int64_t i = 0; i < count; ++i) squares[steps[i].item<int64_t>()] = sums[i].item<double>();
  return squares;
}

// A run of another precision has none.
std::optional<LossScale::State> saved_loss_scale(SavedTensors& saved) {
  NamedTensors found = saved.take_under("loss_scale.");
  if (found.empty()) return {};
  const int64_t count = found.contains("under_way") ? found.at("under_way").numel() : 0;
  SavedTensors named(std::move(found));
  LossScale::State state{.scale = named.take("now", at::kDouble, {}).item<double>(),
                         .finite = named.take_count("finite")};
  const at::Tensor under_way = named.take("under_way", at::kDouble, {count});
  for (int64_t i = 0; i < count; ++i) state.under_way.push_back(under_way[i].item<double>());
  named.require_none_under("");
  LossScale::require(state);
  return state;
}

std::function<void()> restored_rank(const RankOnDisk& rank, const checkpoint::SafetensorsFile& file) {
  std::vector<std::function<void()>> changes;
  SavedTensors saved(tensors::read_tensors(file));
  try {
    for (const StageOnDisk& stage : rank.stages) {
      const auto policy = staleness::make_policy(rank.settings.policy(), rank.settings.options.staleness_options);
      changes.push_back(restored_stage(saved, stage, *policy));
    }
    Heard heard{.squares = saved_squares(saved), .scale = saved_loss_scale(saved)};
    changes.emplace_back([&executor = rank.executor, heard] { executor.restore(heard); });
    saved.require_none_under("");
  } catch (const ConfigError& error) {
    throw ConfigError(fmt::format("{}: it is of another pipeline: {}", file.path().string(), error.what()));
  }
  return [changes] {
    for (const auto& change : changes) change();
  };
}

checkpoint::Manifest last_in(const checkpoint::Store& store) {
  std::error_code error;
  const fs::path& folder = store.folder();
  if (fs::exists(folder, error) && !fs::is_directory(folder, error))
    throw ConfigError(fmt::format("{}: it is a file; expected a folder that Pipeline::save wrote", folder.string()));
  std::optional<checkpoint::Manifest> found = store.last();
  if (!found) throw ConfigError(fmt::format("{}: no pipeline is saved there", folder.string()));
  return *found;
}

// One that something else keeps there would be removed sooner or later.
void require_own_folder(const checkpoint::Store& store) {
  const auto last = store.newest_whole();  // where the last one is damaged, a new one is all the better
  if (!last) return;
  const json about = json::parse(last->about);
  if (!about.is_object() || about.value("what", json()) != kWhat)
    throw ConfigError(
        fmt::format("{}: it has checkpoints of something else; expected a folder of its own", store.folder().string()));
}

}  // namespace

void save(const RankOnDisk& rank, const DoneBefore& done, const fs::path& folder) {
  const checkpoint::Store store(folder);
  const int me = rank.ranks.rank();
  const std::vector<json> optimizers = agreed(rank.ranks, [&] { return optimizers_of(rank); });
  Fd locked;
  const std::vector<json> before = agreed(rank.ranks, [&]() -> json {
    if (me != 0) return 0;
    require_own_folder(store);
    locked = store.lock();
    return store.newest().value_or(0) + 1;
  });
  // Rank 0's: not the micro-batches', because what is saved last is what is loaded, also if it is a younger run.
  const auto number = before[0].get<uint64_t>();
  std::string mine;
  try {
    const std::vector<json> files = agreed(rank.ranks, [&]() -> json {
      const NamedTensors state = rank_state(rank);
      const tensors::TensorBytes bytes({state.begin(), state.end()});
      const checkpoint::Manifest::File file = store.write(number, {part_of(me), bytes.named()});
      mine = file.name;
      return {{"name", file.name}, {"bytes", file.written.bytes}, {"sha256", file.written.sha256}};
    });
    agreed(rank.ranks, [&]() -> json {
      if (me != 0) return nullptr;
      json about = about_pipeline(rank);
      about["micro_batches"] = done.micro_batches;
      about["batches"] = done.batches;
      about["optimizers"] = json::object();
      for (const json& theirs : optimizers) about["optimizers"].update(theirs);
      checkpoint::Manifest manifest{.step = number, .about = about.dump(), .files = {}};
      for (size_t other = 0; other < files.size(); ++other) {
        const json& file = files[other];
        std::error_code error;
        if (fs::file_size(folder / file["name"].get<std::string>(), error) != file["bytes"])
          throw ConfigError(
              fmt::format("{}: rank {}'s file is not seen by rank 0; expected a folder that all ranks share",
                          folder.string(), other));
        manifest.files[part_of(static_cast<int>(other))] = {
            file["name"], {file["bytes"].get<uint64_t>(), file["sha256"].get<std::string>()}};
      }
      store.publish(manifest);
      return nullptr;
    });
  } catch (const ConfigError&) {  // not a lost peer: then nobody knows how far rank 0 is
    if (!mine.empty()) store.discard(number, mine);
    throw;
  }
}

DoneBefore load(const RankOnDisk& rank, const fs::path& folder) {
  const checkpoint::Store store(folder);
  std::function<void()> change;
  const std::vector<json> found = agreed(rank.ranks, [&]() -> json {
    const checkpoint::Manifest manifest = last_in(store);
    json about = json::parse(manifest.about);
    try {
      require_same_pipeline(about, rank);
      for (const char* what : {"micro_batches", "batches"}) {
        const json& done = about.at(what);
        if (!done.is_number_unsigned() || done.get<uint64_t>() >= uint64_t{kMostSaved})
          throw ConfigError(fmt::format("its number of {} is {}", what, done.dump()));
      }
    } catch (const json::exception&) {
      throw ConfigError(fmt::format("{}: it has checkpoints, but of no pipeline", folder.string()));
    } catch (const ConfigError& error) {
      throw ConfigError(fmt::format("{}: {}", folder.string(), error.what()));
    }
    change = restored_rank(rank, store.open(manifest, part_of(rank.ranks.rank())));
    about["number"] = manifest.step;
    for (const auto& [part, file] : manifest.files) about["hashes"][part] = file.written.sha256;
    return about;
  });
  for (size_t other = 0; other < found.size(); ++other) {
    if (found[other] != found[0])
      throw ConfigError(
          fmt::format("{}: rank {} has found another pipeline there than rank 0; expected a folder that "
                      "all ranks share",
                      folder.string(), other));
  }
  change();
  return {.micro_batches = found[0]["micro_batches"], .batches = found[0]["batches"]};
}

}  // namespace ddip::pipeline
