#include "ddip/client/start.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "ddip/base/error.h"

namespace ddip::client {
namespace fs = std::filesystem;
namespace {

using nlohmann::json;

// `ddip serve` is played by a shell script: it reads its configuration from 0 and talks on 1.
class StartTest : public testing::Test {
 protected:
  StartTest() {
    std::string pattern = testing::TempDir() + "ddip-start-XXXXXX";
    folder = ::mkdtemp(pattern.data());
  }
  ~StartTest() override { fs::remove_all(folder); }

  json start(const std::string& script, json config = {{"name", "main"}}) {
    fs::path program = folder / "serve.sh";
    std::ofstream(program) << "#!/bin/sh\ncd " << folder.string() << "\n" << script << "\n";
    ::chmod(program.c_str(), 0700);
    return start_group({program.string(), std::move(config), 5}, [this](const std::string& line) {
      if (!line.empty()) lines.push_back(line);
      if (on_progress) on_progress();
    });
  }

  std::string read(const std::string& name) {
    std::ifstream file(folder / name);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  fs::path folder;
  std::vector<std::string> lines;
  std::function<void()> on_progress;
};

}  // namespace

TEST_F(StartTest, hands_over_the_configuration_and_returns_what_it_is_told) {
  json ready =
      start(R"(cat > config; echo "$DDIP_GROUP" > marker; env | sed 's/=.*//' | sort > names; echo "$@" > arguments
                        (echo '{"progress": "two ranks on cpu"}'; echo '{"progress": "rank 0 is up"}'; echo '{"ready": {"name": "main"}}') &)",
            {{"name", "main"}, {"secret", "hush"}});
  EXPECT_EQ(ready.at("name"), "main");
  EXPECT_EQ(lines, (std::vector<std::string>{"two ranks on cpu", "rank 0 is up"}));
  json config = json::parse(read("config"));
  EXPECT_EQ(config.at("secret"), "hush");
  std::string marker = config.at("marker").get<std::string>();
  EXPECT_EQ(marker.rfind("main.", 0), 0u);
  EXPECT_EQ(read("marker"), marker + "\n");
  EXPECT_EQ(read("arguments"), "serve\n");
  EXPECT_EQ(read("names").find("HOME"), std::string::npos) << "its environment is the marker alone";
}

TEST_F(StartTest, every_start_has_another_marker) {
  std::string script = R"(cat > config; echo '{"ready": {}}')";
  start(script);
  std::string first = json::parse(read("config")).at("marker");
  start(script);
  EXPECT_NE(json::parse(read("config")).at("marker"), first);
}

TEST_F(StartTest, its_own_words_are_the_error) {
  try {
    start(R"(cat > /dev/null; echo '{"error": "rank 1: no module named torch"}')");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "rank 1: no module named torch");
  }
  EXPECT_THROW(start(R"(cat > /dev/null; echo '{"error": "rank 1 did not start in 60 s", "timed_out": true}')"),
               TimedOut);
}

TEST_F(StartTest, coordinator_that_ends_without_a_word_is_a_lost_peer) {
  EXPECT_THROW(start("cat > /dev/null; exit 1"), PeerLost);
  EXPECT_THROW(start("cat > /dev/null; echo '{\"progress\": \"on my way\"}'; exit 1"), PeerLost);
}

TEST_F(StartTest, coordinator_that_does_not_take_its_configuration_is_an_error_and_no_signal) {
  json config = {{"name", "main"}, {"large", std::string(1u << 20, 'c')}};
  EXPECT_THROW(start("exec 0<&-; sleep 0.1", config), PeerLost);
}

TEST_F(StartTest, words_that_are_no_json_are_a_protocol_error) {
  EXPECT_THROW(start("cat > /dev/null; echo Segmentation fault"), ProtocolError);
}

TEST_F(StartTest, program_that_is_not_there_is_named) {
  try {
    start_group({"/no/such/ddip", {{"name", "main"}}, 5}, [](const std::string&) {});
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("/no/such/ddip"), std::string::npos);
  }
}

TEST_F(StartTest, caller_is_asked_while_it_waits_and_may_end_the_start) {
  on_progress = [] { throw std::runtime_error("Ctrl-C"); };
  auto begun = std::chrono::steady_clock::now();
  EXPECT_THROW(start("cat > /dev/null; (sleep 3; echo late) &"), std::runtime_error);
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(2));
}

TEST_F(StartTest, lines_may_come_in_pieces_and_together) {
  start(
      R"(cat > /dev/null; (printf '{"progr'; sleep 0.05; printf 'ess": "cut"}\n{"progress": "and"}\n{"rea'; sleep 0.05; printf 'dy": {}}\n') &)");
  EXPECT_EQ(lines, (std::vector<std::string>{"cut", "and"}));
}

}  // namespace ddip::client
