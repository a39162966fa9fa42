#include <fmt/format.h>
#include <unistd.h>

#include "command.h"
#include "ddip/base/error.h"

namespace ddip::app {
namespace fs = std::filesystem;

namespace {

// As a working copy, `cmake --install` and pip have it.
fs::path find_computing_program(const Context& context) {
  const fs::path folder = context.program.parent_path();
  std::vector<fs::path> places = {folder / "ddip-torch", folder.parent_path() / "libexec" / "ddip" / "ddip-torch"};
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder.parent_path() / "lib", error)) {
    if (entry.path().filename().string().starts_with("python"))
      places.push_back(entry.path() / "site-packages" / "ddip" / "_bin" / "ddip-torch");
  }
  for (const fs::path& place : places) {
    if (::access(place.c_str(), X_OK) == 0) return place;
  }
  throw ConfigError("ddip unet: this ddip was built without torch; ddip doctor says more");
}

}  // namespace

// Its flags are ddip-torch's: this program links no libtorch.
launch::FlagTable unet_flags() {
  return {"ddip unet",
          "train a U-Net on detector events, measure it, use it",
          "train|evaluate|predict [flags]",
          {},
          {"ddip unet train -h explains one of them"}};
}

int unet(const Context& context, const Arguments& arguments) {
  const fs::path program = find_computing_program(context);
  Arguments words = {program.string(), "--ddip", context.program.string(), "unet"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  ::execv(pointers[0], pointers.data());
  throw_errno("ddip unet: " + program.string());
}

}  // namespace ddip::app
