#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "ddip/base/error.h"
#include "ddip/checkpoint/sha256.h"
#include "ddip/checkpoint/store.h"
#include "ddip/testing/system_calls.h"

namespace ddip::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

std::string with_length(std::string_view json) {
  const uint64_t length = json.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes.append(json);
}

class Checkpoint : public ::testing::Test {
 protected:
  Checkpoint() : folder(fs::temp_directory_path() / ("ddip_checkpoint_" + std::to_string(::getpid()))) {
    fs::remove_all(folder);
    fs::create_directories(folder);
  }
  ~Checkpoint() override { fs::remove_all(folder); }

  // Two parts whose contents tell the step.
  static Store::Snapshot snapshot(uint64_t step, const std::vector<float>& values, bool best = false) {
    return {step,
            R"({"epoch": 3})",
            {{"model", {{"w", "F32", {values.size()}, std::as_bytes(std::span(values))}}},
             {"optimizer", {{"m", "F32", {values.size()}, std::as_bytes(std::span(values))}}}},
            best};
  }
  static void save(const Store& store, uint64_t step, bool best = false) {
    const std::vector<float> values(5000, static_cast<float>(step));
    Store(store).save(snapshot(step, values, best));
  }
  static float value(const Store& store, const Manifest& manifest, const std::string& part) {
    const SafetensorsFile file = store.open(manifest, part);
    std::vector<float> values(5000);
    file.read(file.header().tensors.at(0), values.data());
    for (float one : values) EXPECT_EQ(one, values[0]);
    return values[0];
  }
  static std::string refusal(const std::function<void()>& action) {
    try {
      action();
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "accepted";
  }

  const fs::path folder;
};

TEST(Sha256, is_the_published_one) {
  Sha256 hash;
  hash.add(bytes_of("a"));
  hash.add(bytes_of("bc"));
  EXPECT_EQ(hash.hexadecimal(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST_F(Checkpoint, every_malformed_header_is_refused_with_one_line) {
  const std::string good = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  EXPECT_EQ(parse_safetensors_header(good, 8).tensors.size(), 1u);
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"", "does not begin with {"},
      {"[]", "does not begin with {"},
      {"{", "no JSON"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}} x)", "no JSON"},
      {R"({"a":1})", "is not described by"},
      {R"({"a":{"dtype":"F32","shape":[2]}})", "is not described by"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"more":1}})", "is not described by"},
      {R"({"a":{"dtype":"F31","shape":[2],"data_offsets":[0,8]}})", "unknown type"},
      {R"({"a":{"dtype":4,"shape":[2],"data_offsets":[0,8]}})", "unknown type"},
      {R"({"a":{"dtype":"F32","shape":2,"data_offsets":[0,8]}})", "no list"},
      {R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", "no whole number"},
      {R"({"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})", "no whole number"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8]}})", "no list"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", "bytes 8 to 0"},
      {R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", "its shape needs 12"},
      {R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}})", "no memory can hold"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", "expected 0: tensors must touch"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "followed by something else"},
      {R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}})", "cut off"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
       "tensors must touch"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
       "twice"},
      {R"({"__metadata__":{"a":1},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "no text"},
      {R"({"__metadata__":[[[[[[1]]]]]]})", "nested too deeply"},
  };
  for (const auto& [json, said] : bad)
    EXPECT_THAT(refusal([&] { parse_safetensors_header(json, 8); }), HasSubstr(said)) << json;
  EXPECT_THAT(refusal([&] { safetensors_header_length(with_length(good).substr(0, 8), 20); }), HasSubstr("claims"));
  EXPECT_THAT(refusal([&] { safetensors_header_length("1234", 4); }), HasSubstr("too short"));
}

TEST_F(Checkpoint, what_is_written_is_read_and_both_hashes_agree) {
  const std::string text = "12345678";
  const WrittenFile written = write_safetensors(
      folder / "x", {{"b", "I32", {2}, bytes_of(text)}, {"empty", "F32", {0, 3}, {}}, {"a", "U8", {8}, bytes_of(text)}},
      {{"k", "v"}});
  const SafetensorsFile file(folder / "x");
  EXPECT_EQ(file.header().metadata.at("k"), "v");
  ASSERT_EQ(file.header().tensors.size(), 3u);
  EXPECT_EQ(file.header().tensors[2].name, "a");
  std::string out(8, '.');
  file.read(file.header().tensors[2], out.data());
  EXPECT_EQ(out, text);
  EXPECT_EQ(file.fingerprint().sha256, written.sha256);
  EXPECT_EQ(file.fingerprint().bytes, fs::file_size(folder / "x"));
}

TEST_F(Checkpoint, keeps_the_last_two_and_the_best) {
  Store store(folder);
  EXPECT_FALSE(store.last().has_value());
  for (uint64_t step : {10, 20, 30, 40, 50}) save(store, step, step == 20);
  EXPECT_EQ(store.last()->step, 50u);
  EXPECT_EQ(store.best()->step, 20u);
  EXPECT_EQ(value(store, *store.best(), "model"), 20);
  EXPECT_EQ(value(store, *store.last(), "optimizer"), 50);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 3 * 2 + 3) << "files of 20, 40, 50; three manifests";
  save(store, 50);  // the same step again
  EXPECT_EQ(value(store, *store.last(), "model"), 50);
}

// Also where they look like ours at first sight.
TEST_F(Checkpoint, only_files_of_its_own_are_removed) {
  const Store store(folder);
  const std::vector<std::string> foreign = {"step-1000.safetensors",
                                            "step-2000-ema.safetensors",
                                            "step-0000000001-ema.safetensors",
                                            "download.iso.part",
                                            "step-1.json",
                                            "step-0000000001.notes",
                                            "step-0000000001.safetensors",
                                            "best.part",
                                            "step-x.model.safetensors"};
  for (const std::string& name : foreign) std::ofstream(folder / name) << "{}";
  const std::vector<std::string> left = {"step-0000000009.model.safetensors",
                                         "step-0000000009.model.safetensors.12.part", "step-0000000009.json.7.part",
                                         "best.json.12.part"};
  for (const std::string& name : left) std::ofstream(folder / name) << "{}";
  for (uint64_t step : {1, 2, 3}) save(store, step);
  for (const std::string& name : foreign) EXPECT_TRUE(fs::exists(folder / name)) << name;
  for (const std::string& name : left) EXPECT_FALSE(fs::exists(folder / name)) << name;
  EXPECT_EQ(store.last()->step, 3u);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), static_cast<ptrdiff_t>(foreign.size()) + 6);
}

TEST_F(Checkpoint, two_do_not_save_there_at_once) {
  const Store store(folder / "new");
  {
    const Fd mine = store.lock();
    EXPECT_THAT(refusal([&] { static_cast<void>(Store(folder / "new").lock()); }),
                HasSubstr("somebody else saves there at this moment"));
  }
  EXPECT_TRUE(store.lock());
}

TEST_F(Checkpoint, what_nobody_could_read_is_not_written) {
  const Store store(folder);
  EXPECT_THAT(refusal([&] { store.write(1, {"model", {}, {{"text", std::string(kLongestHeader, 'x')}}}); }),
              HasSubstr("what is no tensor would take"));
  EXPECT_TRUE(fs::is_empty(folder));
}

TEST_F(Checkpoint, one_flipped_byte_anywhere_is_refused_and_the_older_one_is_named) {
  Store store(folder);
  save(store, 1);
  save(store, 2);
  const Manifest manifest = *store.last();
  const fs::path path = folder / manifest.files.at("model").name;
  const auto size = fs::file_size(path);
  for (size_t place : {size_t{0}, size_t{9}, size_t{40}, size / 2, size - 1}) {
    auto flip = [&] {
      std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(static_cast<std::streamoff>(place));
      const char old = static_cast<char>(file.get());
      file.seekp(static_cast<std::streamoff>(place));
      file.put(static_cast<char>(old ^ 4));
    };
    flip();
    const std::string said = refusal([&] { store.open(manifest, "model"); });
    EXPECT_THAT(said, HasSubstr("remove step-0000000002.json to go on from step 1")) << place;
    flip();
    EXPECT_EQ(value(store, manifest, "model"), 2);
  }
  std::ofstream(folder / "step-0000000003.json") << "{}";
  EXPECT_THAT(refusal([&] { store.last(); }), HasSubstr("damaged"));
}

TEST_F(Checkpoint, a_damaged_manifest_is_none_of_the_two_that_are_kept) {
  Store store(folder);
  save(store, 1);
  save(store, 2);
  std::ofstream(folder / "step-0000000003.json") << "cut off";
  EXPECT_EQ(store.newest_whole()->step, 2u);
  save(store, 4);
  EXPECT_EQ(store.newest_whole()->step, 4u);
  EXPECT_TRUE(fs::exists(folder / "step-0000000002.json")) << "the only other one that could be loaded";
  EXPECT_FALSE(fs::exists(folder / "step-0000000001.json"));
  save(store, 5);
  for (const char* gone : {"step-0000000002.json", "step-0000000003.json"})
    EXPECT_FALSE(fs::exists(folder / gone)) << gone;
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 6) << "two manifests, and their files";
  EXPECT_EQ(value(store, *store.last(), "model"), 5);
  fs::remove_all(folder);
  EXPECT_FALSE(store.newest_whole());
}

TEST_F(Checkpoint, killed_at_any_system_call_of_a_save_the_old_or_the_new_one_loads) {
  int kills = 0, old_ones = 0, new_ones = 0;
  for (int call = 1;; ++call) {
    fs::remove_all(folder);
    Store store(folder);
    save(store, 1);
    save(store, 2);
    if (testing::kill_at_call(call, [&] { save(store, 3, true); }) == testing::Outcome::finished) break;
    ++kills;
    const Manifest manifest = *store.last();
    ASSERT_TRUE(manifest.step == 2 || manifest.step == 3) << call;
    for (const char* part : {"model", "optimizer"})
      ASSERT_EQ(value(store, manifest, part), static_cast<float>(manifest.step)) << call;
    ++(manifest.step == 2 ? old_ones : new_ones);
    if (manifest.step == 3) {
      ASSERT_EQ(store.best()->step, 3u) << call;
    }
    if (auto best = store.best()) {
      ASSERT_EQ(value(store, *best, "model"), 3) << call;
    }
    save(store, 4);  // and the folder is as usable as before
    ASSERT_EQ(value(store, *store.last(), "model"), 4);
    for (const auto& entry : fs::directory_iterator(folder))
      EXPECT_FALSE(entry.path().string().ends_with(".part")) << "what the crash left is gone: " << entry.path();
  }
  EXPECT_GT(kills, 30);
  EXPECT_GT(old_ones, 10);
  EXPECT_GT(new_ones, 0);
}

TEST_F(Checkpoint, a_full_disk_or_a_failing_one_leaves_the_old_checkpoint_and_says_so) {
  Store store(folder);
  save(store, 1);
  auto attempt = [&](long call, int error) {
    return testing::fail_calls(call, error, [&]() -> std::string {
      save(store, 2);
      return "saved";
    });
  };
  EXPECT_THAT(attempt(SYS_fsync, EIO), HasSubstr("Input/output error"));
  EXPECT_THAT(attempt(SYS_pwrite64, ENOSPC), HasSubstr("No space left on device"));
  EXPECT_THAT(attempt(SYS_rename, ENOSPC), HasSubstr("No space left on device"));
  EXPECT_EQ(store.last()->step, 1u);
  EXPECT_EQ(value(store, *store.last(), "model"), 1);
  EXPECT_EQ(attempt(SYS_getcpu, EPERM), "saved") << "the injector only hits what it names";
}

// A rename that is on the disk before what it names, or that is never on the disk, survives a power cut in the wrong
// way.
TEST_F(Checkpoint, every_file_is_synced_before_it_has_its_name_and_the_folder_after_it) {
  Store store(folder);
  save(store, 1);
  const std::string calls =
      testing::trace_calls({{SYS_pwrite64, 'w'}, {SYS_fsync, 's'}, {SYS_rename, 'r'}}, [&] { save(store, 2, true); });
  EXPECT_THAT(calls, ::testing::MatchesRegex("w+srsw+srsw+srsw+srs")) << "two parts, best.json, the manifest";
}

TEST_F(Checkpoint, a_save_that_fails_leaves_nothing_behind) {
  Store store(folder);
  save(store, 1);
  const auto files = std::distance(fs::directory_iterator(folder), {});
  // The manifest cannot be made: its place is taken by a folder.
  fs::create_directory(folder / "step-0000000002.json");
  EXPECT_THROW(save(store, 2), ConfigError);
  fs::remove(folder / "step-0000000002.json");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), files);
}

TEST_F(Checkpoint, parts_of_several_writers_are_a_checkpoint_when_it_is_published) {
  Store store(folder);
  save(store, 1);
  EXPECT_EQ(*store.newest(), 1u);
  const std::vector<float> values(5000, 2);
  const auto parts = snapshot(2, values).parts;
  Manifest manifest{.step = 2, .about = "{}", .files = {}};
  for (const auto& part : parts) manifest.files[part.name] = store.write(2, part);
  EXPECT_EQ(store.last()->step, 1u) << "not before it is published";
  const auto unused = store.write(2, parts[0]);
  store.publish(manifest);
  EXPECT_EQ(store.last()->step, 2u);
  EXPECT_FALSE(fs::exists(folder / unused.name)) << "nobody names it";

  const auto unpublished = store.write(3, parts[0]);
  store.discard(3, unpublished.name);
  EXPECT_FALSE(fs::exists(folder / unpublished.name));
  // Who learns of a failure after the manifest has its name must not take away what it names.
  for (const auto& [part, file] : manifest.files) store.discard(2, file.name);
  EXPECT_EQ(value(store, *store.last(), "model"), 2);
  EXPECT_EQ(value(store, *store.last(), "optimizer"), 2);
}

TEST_F(Checkpoint, one_flipped_bit_anywhere_in_a_manifest_is_refused) {
  Store store(folder);
  save(store, 1);
  save(store, 2);
  const fs::path path = folder / "step-0000000002.json";
  const auto read_all = [&] {
    std::ifstream file(path, std::ios::binary);
    return std::string{std::istreambuf_iterator<char>(file), {}};
  };
  const std::string good = read_all();
  for (size_t place = 0; place + 1 < good.size(); ++place) {  // the last is the end of the line
    std::string bad = good;
    bad[place] = static_cast<char>(bad[place] ^ 1);
    std::ofstream(path, std::ios::binary) << bad;
    ASSERT_THAT(refusal([&] { store.last(); }), HasSubstr("to go on from step 1")) << place << ": " << bad;
  }
}

TEST_F(Checkpoint, a_manifest_cannot_reach_out_of_its_folder) {
  nlohmann::json manifest = {{"format", 1},
                             {"step", 1},
                             {"about", nlohmann::json::object()},
                             {"files", {{"model", {{"name", "../x"}, {"bytes", 1}, {"sha256", ""}}}}}};
  Sha256 hash;
  const std::string text = manifest.dump();
  hash.add(bytes_of(text));
  manifest["sha256"] = hash.hexadecimal();
  std::ofstream(folder / "step-0000000001.json") << manifest.dump();
  EXPECT_THAT(refusal([&] { Store(folder).last(); }), HasSubstr("another folder"));
}

}  // namespace
}  // namespace ddip::checkpoint
