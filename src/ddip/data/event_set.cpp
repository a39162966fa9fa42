#include "ddip/data/event_set.h"

#include <fmt/format.h>

#include "ddip/base/check.h"
#include "ddip/base/error.h"
#include "ddip/data/npy_events.h"
#include "ddip/data/parquet_library.h"

namespace ddip::data {
namespace fs = std::filesystem;

namespace {

constexpr const char* kParquetName = "events.parquet";

class Range : public EventSet {
 public:
  Range(std::shared_ptr<const EventSet> events, uint64_t begin, uint64_t count)
      : events_(std::move(events)), begin_(begin), shape_(events_->shape()) {
    DDIP_CHECK(begin <= shape_.events && count <= shape_.events - begin, "events that are there");
    shape_.events = count;
  }
  const EventShape& shape() const override { return shape_; }
  bool has_labels() const override { return events_->has_labels(); }
  std::string name_of(uint64_t event) const override { return events_->name_of(begin_ + event); }
  void read(uint64_t event, float* image, uint8_t* labels) const override {
    events_->read(begin_ + event, image, labels);
  }

 private:
  std::shared_ptr<const EventSet> events_;
  uint64_t begin_;
  EventShape shape_;
};

fs::path parquet_file(const fs::path& path) { return fs::is_directory(path) ? path / kParquetName : path; }

}  // namespace

EventFormat format_of_events(const fs::path& path) {
  std::error_code error;
  const fs::file_status about = fs::status(path, error);
  if (!fs::exists(about)) throw ConfigError(fmt::format("{}: there is no such folder or file", path.string()));
  if (!fs::is_directory(about)) {
    if (path.extension() == ".parquet") return EventFormat::parquet;
    throw ConfigError(fmt::format("{}: expected a folder of events, or a .parquet file", path.string()));
  }
  const bool npy = fs::exists(path / kImagesName, error) || fs::exists(path / kLabelsName, error);
  const bool parquet = fs::exists(path / kParquetName, error);
  if (npy && parquet)
    throw ConfigError(
        fmt::format("{}: it has both .npy files and {}; expected one of the two", path.string(), kParquetName));
  if (!npy && !parquet)
    throw ConfigError(fmt::format("{}: expected {} and {} in it, or {}; ddip data synth makes such a folder",
                                  path.string(), kImagesName, kLabelsName, kParquetName));
  return npy ? EventFormat::npy : EventFormat::parquet;
}

std::unique_ptr<EventSet> open_events(const fs::path& path, Labels labels) {
  if (format_of_events(path) == EventFormat::npy) return std::make_unique<NpyEvents>(path, labels);
  return parquet_library().open(parquet_file(path), labels);
}

std::shared_ptr<const EventSet> range_of(std::shared_ptr<const EventSet> events, uint64_t begin, uint64_t count) {
  return std::make_shared<Range>(std::move(events), begin, count);
}

std::unique_ptr<EventWriter> create_events(const fs::path& folder, EventFormat format, const EventShape& shape) {
  // Found out before anything is made.
  const ParquetLibrary* parquet = format == EventFormat::parquet ? &parquet_library() : nullptr;
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw ConfigError(fmt::format("{}: {}", folder.string(), error.message()));
  if (parquet) return parquet->create(folder / kParquetName, shape);
  return std::make_unique<NpyEventWriter>(folder, shape);
}

}  // namespace ddip::data
