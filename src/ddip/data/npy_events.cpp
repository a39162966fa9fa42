#include "ddip/data/npy_events.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ddip/base/error.h"

namespace ddip::data {
namespace {

std::string described(const NpyHeader& header) {
  return fmt::format("{} ({})", header.type.text(), fmt::join(header.shape, ", "));
}

}  // namespace

NpyEvents::NpyEvents(const std::filesystem::path& folder)
    : images_(folder / kImagesName), labels_(folder / kLabelsName) {
  const NpyHeader &images = images_.header(), &labels = labels_.header();
  if (images.type != NpyType{'f', 4} || images.shape.size() != 4)
    throw ConfigError(fmt::format("{}: it holds {}; expected float32 (events, channels, height, width)",
                                  (folder / kImagesName).string(), described(images)));
  const auto& size = images.shape;
  if (labels.type != NpyType{'u', 1} || labels.shape != std::vector<uint64_t>{size[0], size[2], size[3]})
    throw ConfigError(fmt::format("{}: it holds {}; expected uint8 ({}, {}, {}), as {} has it",
                                  (folder / kLabelsName).string(), described(labels), size[0], size[2], size[3],
                                  kImagesName));
  shape_ = {size[0], size[1], size[2], size[3]};
  if (shape_.image_values() == 0)
    throw ConfigError(fmt::format("{}: its images have no pixels", (folder / kImagesName).string()));
}

void NpyEvents::read(uint64_t event, float* image, uint8_t* labels) const {
  images_.read(event, 1, image);
  labels_.read(event, 1, labels);
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
