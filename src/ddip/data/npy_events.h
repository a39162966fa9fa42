// Events as two .npy files in a folder: images float32 (N, C, H, W), labels uint8 (N, H, W).
#pragma once

#include <optional>

#include "ddip/data/event_set.h"
#include "ddip/data/npy_file.h"

namespace ddip::data {

constexpr const char* kImagesName = "images.npy";
constexpr const char* kLabelsName = "labels.npy";

class NpyEvents : public EventSet {
 public:
  explicit NpyEvents(const std::filesystem::path& folder, Labels labels = Labels::needed);

  const EventShape& shape() const override { return shape_; }
  bool has_labels() const override { return labels_.has_value(); }
  std::string name_of(uint64_t event) const override;
  void read(uint64_t event, float* image, uint8_t* labels) const override;

 private:
  std::filesystem::path folder_;
  NpyFile images_;
  std::optional<NpyFile> labels_;
  EventShape shape_;
};

class NpyEventWriter : public EventWriter {
 public:
  NpyEventWriter(const std::filesystem::path& folder, const EventShape& shape);

  void write(std::span<const float> image, std::span<const uint8_t> labels) override;
  void close() override;

 private:
  NpyWriter images_;
  NpyWriter labels_;
};

}  // namespace ddip::data
