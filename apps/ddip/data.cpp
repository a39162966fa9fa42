#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "command.h"
#include "ddip/base/error.h"
#include "ddip/data/events.h"
#include "ddip/data/npy_file.h"
#include "ddip/data/png.h"

namespace ddip::app {

using launch::Takes;

launch::FlagTable data_flags() {
  return {"ddip data",
          "make synthetic detector events (synth), or draw one (view)",
          "synth --out DIR --events N | view DIR --out FILE.png [--index I]",
          {{"both", {{"--out", "", Takes::Value, "PATH", "the folder to write (synth), the picture (view)"}}},
           {"synth",
            {{"--events", "", Takes::Value, "N", "how many"},
             {"--size", "", Takes::Value, "PIXELS", "of one side (default 256)"},
             {"--seed", "", Takes::Value, "S", "the same seed gives the same events (default 0)"},
             {"--format", "", Takes::Value, "npy", "images.npy and labels.npy; Parquet comes in a later release"}}},
           {"view", {{"--index", "", Takes::Value, "I", "which event (default 0)"}}}},
          {"ddip data synth --out events --events 1000 --seed 7", "ddip data view events --index 3 --out event.png"}};
}

namespace {

constexpr double kBrightest = 400;  // MeV × 100: what is above is as bright
constexpr int kGap = 8;

launch::FlagText needed(const launch::Flags& flags, const std::string& what, const std::string& flag) {
  if (!flags.has(flag))
    throw ConfigError(fmt::format("ddip data {}: expected {}; ddip data -h lists the flags", what, flag));
  return flags.value(flag);
}

void refuse_others(const launch::Flags& flags, const std::string& what, const std::vector<std::string>& others) {
  for (const std::string& flag : others) {
    if (flags.has(flag))
      throw ConfigError(fmt::format("ddip data {} {}: this flag does not belong to {}", what, flag, what));
  }
}

int synth(const launch::Flags& flags) {
  refuse_others(flags, "synth", {"--index"});
  const std::filesystem::path folder = needed(flags, "synth", "--out").text;
  const uint64_t events =
      launch::whole_number(needed(flags, "synth", "--events"), {"a number of events", 1, 100'000'000});
  const uint64_t size = flags.has("--size") ? launch::whole_number(flags.value("--size"),
                                                                   {"pixels of one side", data::kLeastEventSize, 4096})
                                            : 256;
  const uint64_t seed = flags.has("--seed") ? launch::whole_number(flags.value("--seed"), {"a seed", 0, INT64_MAX}) : 0;
  if (flags.has("--format")) launch::one_of(flags.value("--format"), {"npy"});
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw ConfigError(fmt::format("ddip data synth --out {}: {}", folder.string(), error.message()));

  data::NpyWriter images(folder / "images.npy", {'f', 4}, {1, size, size});
  data::NpyWriter labels(folder / "labels.npy", {'u', 1}, {size, size});
  const bool bar = ::isatty(STDERR_FILENO) == 1;
  uint64_t counts[3] = {};
  for (uint64_t number = 0; number < events; ++number) {
    const data::Event event = data::make_event(seed, number, static_cast<int>(size));
    images.write(std::as_bytes(std::span(event.image)));
    labels.write(std::as_bytes(std::span(event.labels)));
    for (uint8_t pixel : event.labels) ++counts[pixel];
    if (bar && (number + 1) % 50 == 0) fmt::print(stderr, "\r{} of {} events", number + 1, events);
  }
  if (bar) fmt::print(stderr, "\r\033[K");
  images.close();
  labels.close();
  const double all = static_cast<double>(counts[0] + counts[1] + counts[2]);
  fmt::print("{} events of {}×{} in {}: {:.2f}% background, {:.2f}% shower, {:.2f}% track\n", events, size, size,
             folder.string(), 100 * static_cast<double>(counts[0]) / all, 100 * static_cast<double>(counts[1]) / all,
             100 * static_cast<double>(counts[2]) / all);
  return 0;
}

// Energies on the left, classes on the right: showers blue, tracks orange.
int view(const launch::Flags& flags, const std::filesystem::path& folder) {
  refuse_others(flags, "view", {"--events", "--size", "--seed", "--format"});
  const std::filesystem::path out = needed(flags, "view", "--out").text;
  const data::NpyFile images(folder / "images.npy"), labels(folder / "labels.npy");
  const auto& shape = images.header().shape;
  if (images.header().type != data::NpyType{'f', 4} || shape.size() != 4 || shape[1] != 1 ||
      labels.header().type != data::NpyType{'u', 1} ||
      labels.header().shape != std::vector<uint64_t>{shape[0], shape[2], shape[3]} || shape[2] > 16384 ||
      shape[3] > 16384)
    throw ConfigError(fmt::format(
        "ddip data view {}: images.npy must be float32 (N, 1, H, W) and labels.npy uint8 (N, H, W)", folder.string()));
  const uint64_t index = flags.has("--index")
                             ? launch::whole_number(flags.value("--index"), {"an event's number", 0, images.rows() - 1})
                             : 0;
  const int high = static_cast<int>(shape[2]), wide = static_cast<int>(shape[3]);
  std::vector<float> energies(images.row_bytes() / 4);
  std::vector<uint8_t> pixels(labels.row_bytes());
  images.read(index, 1, energies.data());
  labels.read(index, 1, pixels.data());
  data::Picture picture(2 * wide + kGap, high);
  std::fill(picture.rgb.begin(), picture.rgb.end(), uint8_t{255});
  for (int y = 0; y < high; ++y) {
    for (int x = 0; x < wide; ++x) {
      const size_t place = static_cast<size_t>(y) * static_cast<size_t>(wide) + static_cast<size_t>(x);
      const double share = std::clamp(static_cast<double>(energies[place]) / kBrightest, 0.0, 1.0);
      const auto grey = static_cast<uint8_t>(255 * std::sqrt(std::isfinite(share) ? share : 1.0));
      picture.set(x, y, grey, grey, grey);
      const int right = wide + kGap + x;
      switch (pixels[place]) {
        case 1: picture.set(right, y, 80, 160, 255); break;
        case 2: picture.set(right, y, 255, 150, 40); break;
        default: picture.set(right, y, 0, 0, 0);
      }
    }
  }
  data::write_png(out, picture);
  fmt::print("event {} of {}: energies and classes (shower blue, track orange) in {}\n", index, images.rows(),
             out.string());
  return 0;
}

}  // namespace

int data(const Context&, const Arguments& arguments) {
  const launch::Flags flags(data_flags(), arguments);
  const auto& words = flags.words();
  if (words.empty()) throw ConfigError("ddip data: expected synth or view; ddip data -h lists the flags");
  const std::string& what = words[0];
  if (what == "convert") throw ConfigError("ddip data convert: comes in a later release, with Parquet");
  launch::one_of({"ddip data " + launch::shown(what), what}, {"synth", "view"});
  const size_t expected = what == "synth" ? 1 : 2;
  if (words.size() > expected)
    throw ConfigError(fmt::format("ddip data {}: one word too many: {}", what, launch::shown(words[expected])));
  if (what == "synth") return synth(flags);
  if (words.size() < 2) throw ConfigError("ddip data view: expected the folder that synth wrote");
  return view(flags, words[1]);
}

}  // namespace ddip::app
