#include <fmt/format.h>

#include <vector>

#include "data.h"
#include "ddip/base/error.h"

namespace ddip::app {

int data_convert(const Context& context, const launch::Flags& flags, const std::filesystem::path& source,
                 const std::filesystem::path& target) {
  using data::EventFormat;
  const EventFormat from = data::format_of_events(source);
  const EventFormat to = flags.has("--format")      ? event_format(flags.value("--format"))
                         : from == EventFormat::npy ? EventFormat::parquet
                                                    : EventFormat::npy;
  std::error_code error;
  if (std::filesystem::exists(target, error))
    throw ConfigError(fmt::format("ddip data convert {}: it is there already; expected a new folder", target.string()));
  const auto events = data::open_events(source);
  const data::EventShape& shape = events->shape();
  const auto writer = data::create_events(target, to, shape);
  std::vector<float> image(shape.image_values());
  std::vector<uint8_t> labels(shape.pixels());
  {
    Count count(context.err.terminal, shape.events);
    for (uint64_t number = 0; number < shape.events; ++number) {
      events->read(number, image.data(), labels.data());
      writer->write(image, labels);
      count.done(number + 1);
    }
  }
  writer->close();
  fmt::print("{} events of {}×{} in {}, as {}\n", shape.events, shape.height, shape.width, target.string(),
             to == EventFormat::npy ? ".npy" : "Parquet");
  return 0;
}

}  // namespace ddip::app
