// Labelled images in a folder or file, whatever their format: what training reads and converting copies.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace ddip::data {

struct EventShape {
  uint64_t events = 0;
  uint64_t channels = 1;
  uint64_t height = 0;
  uint64_t width = 0;

  uint64_t pixels() const { return height * width; }
  uint64_t image_values() const { return channels * pixels(); }
  bool operator==(const EventShape&) const = default;
};

enum class Labels { needed, optional };  // optional: where there are none, every label is 0

class EventSet {
 public:
  virtual ~EventSet() = default;
  virtual const EventShape& shape() const = 0;
  virtual bool has_labels() const = 0;
  // "FOLDER: event 3", for messages.
  virtual std::string name_of(uint64_t event) const = 0;
  // From any thread. `image` has room for image_values(), `labels` for pixels(). REQUIRES: event < shape().events.
  virtual void read(uint64_t event, float* image, uint8_t* labels) const = 0;
};

class EventWriter {
 public:
  virtual ~EventWriter() = default;
  virtual void write(std::span<const float> image, std::span<const uint8_t> labels) = 0;
  virtual void close() = 0;  // before it there is nothing, or the old one
};

enum class EventFormat { npy, parquet };

// What lies at `path`: a folder with images.npy and labels.npy, a folder with events.parquet, or such a file itself.
// Throws ConfigError.
EventFormat format_of_events(const std::filesystem::path& path);

// Everything is checked that can be without reading all of it. Throws ConfigError, one line.
std::unique_ptr<EventSet> open_events(const std::filesystem::path& path, Labels labels = Labels::needed);

// `count` events from `begin` on, numbered from 0. REQUIRES: they are there.
std::shared_ptr<const EventSet> range_of(std::shared_ptr<const EventSet> events, uint64_t begin, uint64_t count);

// Makes the folder. `shape.events` does not matter. Throws ConfigError.
std::unique_ptr<EventWriter> create_events(const std::filesystem::path& folder, EventFormat format,
                                           const EventShape& shape);

}  // namespace ddip::data
