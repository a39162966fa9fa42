#include "ddip/data/npy_events.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "ddip/base/error.h"

namespace ddip::data {
namespace {

std::string described(const NpyHeader& header) {
  return fmt::format("{} ({})", header.type.text(), fmt::join(header.shape, ", "));
}

}  // namespace

NpyEvents::NpyEvents(const std::filesystem::path& folder, Labels labels)
    : folder_(folder), images_(folder / kImagesName) {
  const NpyHeader& images = images_.header();
  if (images.type != NpyType{'f', 4} || images.shape.size() != 4)
    throw ConfigError(fmt::format("{}: it holds {}; expected float32 (events, channels, height, width)",
                                  (folder / kImagesName).string(), described(images)));
  const auto& size = images.shape;
  shape_ = {size[0], size[1], size[2], size[3]};
  if (shape_.image_values() == 0)
    throw ConfigError(fmt::format("{}: its images have no pixels", (folder / kImagesName).string()));
  std::error_code error;
  if (labels == Labels::optional && !std::filesystem::exists(folder / kLabelsName, error)) return;
  labels_.emplace(folder / kLabelsName);
  if (labels_->header().type != NpyType{'u', 1} ||
      labels_->header().shape != std::vector<uint64_t>{size[0], size[2], size[3]})
    throw ConfigError(fmt::format("{}: it holds {}; expected uint8 ({}, {}, {}), as {} has it",
                                  (folder / kLabelsName).string(), described(labels_->header()), size[0], size[2],
                                  size[3], kImagesName));
}

std::string NpyEvents::name_of(uint64_t event) const { return fmt::format("{}: event {}", folder_.string(), event); }

void NpyEvents::read(uint64_t event, float* image, uint8_t* labels) const {
  images_.read(event, 1, image);
  if (labels_)
    labels_->read(event, 1, labels);
  else
    std::fill_n(labels, shape_.pixels(), uint8_t{0});
}

NpyEventWriter::NpyEventWriter(const std::filesystem::path& folder, const EventShape& shape)
    : images_(folder / kImagesName, {'f', 4}, {shape.channels, shape.height, shape.width}),
      labels_(folder / kLabelsName, {'u', 1}, {shape.height, shape.width}) {}

void NpyEventWriter::write(std::span<const float> image, std::span<const uint8_t> labels) {
  images_.write(std::as_bytes(image));
  labels_.write(std::as_bytes(labels));
}

void NpyEventWriter::close() {
  images_.close();
  labels_.close();
}

}  // namespace ddip::data
