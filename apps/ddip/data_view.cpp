#include <fmt/format.h>

#include <vector>

#include "data.h"
#include "ddip/base/error.h"
#include "ddip/data/event_picture.h"

namespace ddip::app {

int data_view(const launch::Flags& flags, const std::filesystem::path& source) {
  const std::filesystem::path out = needed(flags, "view", "--out").text;
  const auto events = data::open_events(source);
  const data::EventShape& shape = events->shape();
  if (shape.height > 16384 || shape.width > 16384)
    throw ConfigError(fmt::format("ddip data view {}: images of {}×{} are too large to draw", source.string(),
                                  shape.height, shape.width));
  const uint64_t index = flags.has("--index")
                             ? launch::whole_number(flags.value("--index"), {"an event's number", 0, shape.events - 1})
                             : 0;
  std::vector<float> image(shape.image_values());
  std::vector<uint8_t> labels(shape.pixels());
  events->read(index, image.data(), labels.data());
  data::EventPicture picture(2, static_cast<int>(shape.height), static_cast<int>(shape.width));
  picture.energies(0, image);
  picture.classes(1, labels);
  data::write_png(out, picture.picture());
  fmt::print("event {} of {}: energies and classes (shower blue, track orange) in {}\n", index, shape.events,
             out.string());
  return 0;
}

}  // namespace ddip::app
