// A folder of checkpoints. Each is some .safetensors files and a manifest, step-N.json, that names them with their
// hashes; the manifest comes last, so a checkpoint that can be seen is whole. Two are kept at least, and the best one.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "ddip/base/fd.h"
#include "ddip/checkpoint/safetensors_file.h"

namespace ddip::checkpoint {

struct Manifest {
  uint64_t step = 0;
  std::string about;  // JSON: what the trainer keeps beside its tensors
  struct File {
    std::string name;
    WrittenFile written;
  };
  std::map<std::string, File> files;  // by part: "model", "optimizer"
};

class Store {
 public:
  // The folder need not exist: the first save makes it.
  explicit Store(std::filesystem::path folder) : folder_(std::move(folder)) {}

  struct Part {
    std::string name;
    std::vector<NamedBytes> tensors;
    std::map<std::string, std::string> metadata = {};  // what is no tensor
  };
  struct Snapshot {
    uint64_t step = 0;
    std::string about;  // JSON
    std::vector<Part> parts;
    bool best = false;
  };

  // When it returns, it is on the disk. If it throws, what was there before still is.
  void save(const Snapshot& snapshot);

  // Makes the folder. As long as the descriptor is open, nobody else gets it: two savers would remove each other's
  // files. Throws ConfigError if somebody has it.
  Fd lock() const;

  // The same by several processes: each writes its own parts, and when all are on the disk, one of them publishes the
  // manifest. They throw as save does; then everybody discards what he wrote.
  Manifest::File write(uint64_t step, const Part& part) const;
  void publish(const Manifest& manifest, bool best = false) const;
  void discard(uint64_t step, const std::string& file) const;  // unless a manifest names it already

  std::optional<uint64_t> newest() const;  // step, whether its manifest is good or not
  // Nothing if there is none. Throw ConfigError for a manifest that is damaged.
  std::optional<Manifest> last() const;
  std::optional<Manifest> best() const;

  // The newest whose manifest is good, if there is one.
  std::optional<Manifest> newest_whole() const;

  // Its size and hash are compared with the manifest's first. Throws ConfigError, naming the older checkpoint if one is
  // there.
  SafetensorsFile open(const Manifest& manifest, const std::string& part) const;

  const std::filesystem::path& folder() const { return folder_; }

 private:
  void make_folder() const;
  Manifest read(const std::filesystem::path& path) const;
  std::vector<uint64_t> steps() const;  // ascending
  std::string instead_of(uint64_t step) const;
  std::optional<Manifest> whole(uint64_t step) const;
  void prune(uint64_t newest) const;

  std::filesystem::path folder_;
};

}  // namespace ddip::checkpoint
