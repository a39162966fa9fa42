#include "ddip/checkpoint/store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <nlohmann/json.hpp>
#include <ranges>
#include <set>

#include "ddip/base/error.h"
#include "ddip/base/file.h"
#include "ddip/base/strict_json.h"
#include "ddip/checkpoint/sha256.h"

namespace ddip::checkpoint {
namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr size_t kKept = 2;
constexpr const char* kBest = "best.json";
constexpr const char* kHash = "sha256";
constexpr uint64_t kLongestManifest = 16 << 20;
constexpr int kDeepest = 32;

std::string stem(uint64_t step) { return fmt::format("step-{:010}", step); }

std::string hash_of(const json& manifest) {
  const std::string text = manifest.dump();
  Sha256 hash;
  hash.add(std::as_bytes(std::span(text)));
  return hash.hexadecimal();
}

// A step may be saved again, and until the new manifest is there the old one needs its files.
std::string unused_name(const fs::path& folder, uint64_t step, const std::string& part) {
  std::string name = fmt::format("{}.{}.safetensors", stem(step), part);
  for (int again = 2; fs::exists(folder / name); ++again)
    name = fmt::format("{}.{}.{}.safetensors", stem(step), part, again);
  return name;
}

bool all_digits(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

// What a save may have left there: "step-0000000007.model.safetensors", or "….1234.part" of it or of a manifest.
bool is_left_over(std::string_view name) {
  const bool unfinished = name.ends_with(".part");
  if (unfinished) {
    name.remove_suffix(5);
    const size_t dot = name.rfind('.');
    if (dot == std::string_view::npos || !all_digits(name.substr(dot + 1))) return false;
    name = name.substr(0, dot);
    if (name == kBest) return true;
  }
  if (!name.starts_with("step-")) return false;
  const size_t dot = name.find('.');
  if (dot == std::string_view::npos || dot < 15 || !all_digits(name.substr(5, dot - 5))) return false;
  const std::string_view rest = name.substr(dot);
  return (rest.ends_with(".safetensors") && rest != ".safetensors") || (unfinished && rest == ".json");
}

void write_manifest(const fs::path& path, const std::string& text) {
  NewFile file(path);
  file.write(std::as_bytes(std::span(text)), 0);
  file.publish();
}

[[noreturn]] void refuse(const fs::path& path, const std::string& why) {
  throw ConfigError(fmt::format("{}: {}", path.string(), why));
}

}  // namespace

Fd Store::lock() const {
  make_folder();
  Fd folder(::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder) refuse(folder_, std::strerror(errno));
  // Where nothing can be locked (some network's file systems), nobody is kept out.
  if (::flock(folder.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    refuse(folder_, "somebody else saves there at this moment; expected a folder of its own for each run");
  return folder;
}

void Store::make_folder() const {
  std::error_code error;
  const bool made = fs::create_directories(folder_, error);
  if (error) throw ConfigError(fmt::format("{}: {}", folder_.string(), error.message()));
  if (made) sync_folder(folder_.parent_path());
}

Manifest::File Store::write(uint64_t step, const Part& part) const {
  make_folder();
  const std::string name = unused_name(folder_, step, part.name);
  std::map<std::string, std::string> metadata = part.metadata;
  metadata["format"] = "pt";  // what other programs look for
  return {name, write_safetensors(folder_ / name, part.tensors, metadata)};
}

void Store::publish(const Manifest& manifest, bool best) const {
  json said = {{"format", 1}, {"step", manifest.step}, {"about", json::parse(manifest.about)}};
  for (const auto& [part, file] : manifest.files)
    said["files"][part] = {{"name", file.name}, {"bytes", file.written.bytes}, {"sha256", file.written.sha256}};
  said[kHash] = hash_of(said);
  const std::string text = said.dump(2) + "\n";
  // The best one first: who finds the new step finds its name in best.json too, if it was better.
  if (best) write_manifest(folder_ / kBest, text);
  write_manifest(folder_ / (stem(manifest.step) + ".json"), text);
  prune(manifest.step);
}

void Store::save(const Snapshot& snapshot) {
  Manifest manifest{.step = snapshot.step, .about = snapshot.about, .files = {}};
  try {
    for (const Part& part : snapshot.parts) manifest.files[part.name] = write(snapshot.step, part);
    publish(manifest, snapshot.best);
  } catch (...) {
    for (const auto& [part, file] : manifest.files) discard(snapshot.step, file.name);  // room for the next attempt
    throw;
  }
}

void Store::discard(uint64_t step, const std::string& file) const {
  for (const std::string& name : {std::string(kBest), stem(step) + ".json"}) {
    try {
      const Manifest manifest = read(folder_ / name);
      if (std::ranges::any_of(manifest.files, [&](const auto& named) { return named.second.name == file; })) return;
    } catch (const std::exception&) {
      // It is not there, or names nothing.
    }
  }
  std::error_code error;
  fs::remove(folder_ / file, error);
}

Manifest Store::read(const fs::path& path) const {
  const std::string text = read_small_file(path, kLongestManifest);
  try {
    json parsed = parse_strict_json(text, kDeepest);
    if (parsed.at("format") != 1)
      refuse(path, fmt::format("it has format {}; this ddip reads format 1", parsed.at("format").dump()));
    const std::string hash = parsed.at(kHash);
    parsed.erase(kHash);
    if (hash_of(parsed) != hash) refuse(path, "it is not what was written: its hash differs");
    Manifest manifest{.step = parsed.at("step").get<uint64_t>(), .about = parsed.at("about").dump(), .files = {}};
    for (const auto& [part, about] : parsed.at("files").items()) {
      const std::string name = about.at("name");
      if (name.empty() || fs::path(name).filename() != name) refuse(path, "it names a file in another folder");
      manifest.files[part] = {name, {about.at("bytes").get<uint64_t>(), about.at("sha256").get<std::string>()}};
    }
    return manifest;
  } catch (const json::exception&) {
    refuse(path, "it is damaged: no manifest of a checkpoint");
  } catch (const NotJson& error) {
    refuse(path, fmt::format("it is damaged: {}", error.what()));
  }
}

std::vector<uint64_t> Store::steps() const {
  std::vector<uint64_t> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder_, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("step-") || !name.ends_with(".json")) continue;
    uint64_t step = 0;
    const char *begin = name.data() + 5, *end = name.data() + name.size() - 5;
    const auto [stop, wrong] = std::from_chars(begin, end, step);
    if (wrong == std::errc{} && stop == end && name == stem(step) + ".json") found.push_back(step);
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::optional<uint64_t> Store::newest() const {
  const std::vector<uint64_t> all = steps();
  return all.empty() ? std::nullopt : std::optional(all.back());
}

std::optional<Manifest> Store::last() const {
  const std::vector<uint64_t> all = steps();
  if (all.empty()) return std::nullopt;
  try {
    return read(folder_ / (stem(all.back()) + ".json"));
  } catch (const ConfigError& error) {
    throw ConfigError(error.what() + instead_of(all.back()));
  }
}

// Nothing if its manifest is damaged.
std::optional<Manifest> Store::whole(uint64_t step) const {
  try {
    return read(folder_ / (stem(step) + ".json"));
  } catch (const ConfigError&) {
    return std::nullopt;
  }
}

std::optional<Manifest> Store::newest_whole() const {
  for (uint64_t step : steps() | std::views::reverse) {
    if (auto found = whole(step)) return found;
  }
  return std::nullopt;
}

// What to do without the checkpoint of this step.
std::string Store::instead_of(uint64_t step) const {
  const std::vector<uint64_t> all = steps();
  const auto older = std::lower_bound(all.begin(), all.end(), step);
  if (older == all.begin()) return "";
  return fmt::format("; remove {}.json to go on from step {}", stem(step), *(older - 1));
}

std::optional<Manifest> Store::best() const {
  std::error_code error;
  if (!fs::exists(folder_ / kBest, error)) return std::nullopt;
  return read(folder_ / kBest);
}

SafetensorsFile Store::open(const Manifest& manifest, const std::string& part) const {
  const auto found = manifest.files.find(part);
  if (found == manifest.files.end())
    refuse(folder_, fmt::format("the checkpoint of step {} has no part {:?}", manifest.step, part));
  const fs::path path = folder_ / found->second.name;
  try {
    SafetensorsFile file(path);
    const WrittenFile there = file.fingerprint();
    if (there.bytes != found->second.written.bytes || there.sha256 != found->second.written.sha256)
      refuse(path, "it is not what was written: its hash differs");
    return file;
  } catch (const ConfigError& error) {
    const std::vector<uint64_t> all = steps();
    const bool last_one = !all.empty() && all.back() == manifest.step;
    throw ConfigError(error.what() + (last_one ? instead_of(manifest.step) : "; remove best.json to use the last one"));
  }
}

// Only behind the new manifest's rename: until then an older checkpoint is the one that counts.
void Store::prune(uint64_t newest) const {
  std::vector<uint64_t> all = steps();
  std::erase_if(all, [&](uint64_t step) { return step > newest; });  // of a run that went further: not ours to remove
  std::error_code error;
  size_t whole_ones = 0;  // a damaged one is of no use: it does not count
  for (uint64_t step : all | std::views::reverse) {
    if (whole_ones == kKept)
      fs::remove(folder_ / (stem(step) + ".json"), error);
    else if (whole(step))
      ++whole_ones;
  }
  std::set<std::string> needed;
  try {
    std::vector<Manifest> kept;
    for (uint64_t step : steps()) kept.push_back(read(folder_ / (stem(step) + ".json")));
    if (auto best_one = best()) kept.push_back(*best_one);
    for (const Manifest& manifest : kept) {
      for (const auto& [part, file] : manifest.files) needed.insert(file.name);
    }
  } catch (const ConfigError&) {
    return;  // what a damaged manifest needs is not known: nothing is removed
  }
  // Also what a crash left: unfinished files, tensors whose manifest never came.
  for (const auto& entry : fs::directory_iterator(folder_, error)) {
    const std::string name = entry.path().filename().string();
    if (is_left_over(name) && !needed.contains(name)) fs::remove(entry.path(), error);
  }
}

}  // namespace ddip::checkpoint
