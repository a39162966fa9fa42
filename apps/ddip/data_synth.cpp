#include <fmt/format.h>

#include "data.h"
#include "ddip/base/error.h"
#include "ddip/data/events.h"

namespace ddip::app {

int data_synth(const Context& context, const launch::Flags& flags) {
  const std::filesystem::path folder = needed(flags, "synth", "--out").text;
  const uint64_t events =
      launch::whole_number(needed(flags, "synth", "--events"), {"a number of events", 1, 100'000'000});
  const uint64_t size = flags.has("--size") ? launch::whole_number(flags.value("--size"),
                                                                   {"pixels of one side", data::kLeastEventSize, 4096})
                                            : 256;
  const uint64_t seed = flags.has("--seed") ? launch::whole_number(flags.value("--seed"), {"a seed", 0, INT64_MAX}) : 0;
  const data::EventFormat format =
      flags.has("--format") ? event_format(flags.value("--format")) : data::EventFormat::npy;

  for (const char* name : {"images.npy", "labels.npy", "events.parquet"}) {
    std::error_code error;
    if (std::filesystem::exists(folder / name, error))
      throw ConfigError(
          fmt::format("ddip data synth --out {}: it has events already; expected a new folder", folder.string()));
  }
  const auto writer = data::create_events(folder, format, {events, 1, size, size});
  uint64_t counts[3] = {};
  {
    Count count(context.err.terminal, events);
    for (uint64_t number = 0; number < events; ++number) {
      const data::Event event = data::make_event(seed, number, static_cast<int>(size));
      writer->write(event.image, event.labels);
      for (uint8_t pixel : event.labels) ++counts[pixel];
      count.done(number + 1);
    }
  }
  writer->close();
  const double all = static_cast<double>(counts[0] + counts[1] + counts[2]);
  auto percent = [&](uint64_t pixels) { return 100 * static_cast<double>(pixels) / all; };
  fmt::print("{} events of {}×{} in {}: {:.2f}% background, {:.2f}% shower, {:.2f}% track\n", events, size, size,
             folder.string(), percent(counts[0]), percent(counts[1]), percent(counts[2]));
  return 0;
}

}  // namespace ddip::app
