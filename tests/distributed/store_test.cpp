#include "levin/distributed/store.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "levin/core/error.h"
#include "levin/testing/error_of.h"

namespace levin {
namespace {

using std::chrono::milliseconds;
using testing::error_of;
using ::testing::HasSubstr;

/// Local addresses, as the kernel writes them, of the sockets that listen on a port.
std::vector<std::string> listeners(int port) {
  std::vector<std::string> found;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    std::string line;
    std::getline(file, line);
    while (std::getline(file, line)) {
      std::istringstream words(line);
      std::string index, local, remote, state;
      words >> index >> local >> remote >> state;
      const auto colon = local.find(':');
      if (state == "0A" && std::stoi(local.substr(colon + 1), nullptr, 16) == port)
        found.push_back(local.substr(0, colon));
    }
  }
  return found;
}

Placement placement_at(int rank, int port, int attempt = 0) {
  return {.global_rank = rank,
          .world_size = 2,
          .master_addr = "127.0.0.1",
          .master_port = port,
          .store_is_hosted = true,
          .attempt = attempt};
}

TEST(Store, ListensOnItsOwnAddressOnly) {
  const auto hosted = host_store("127.0.0.1", 0, milliseconds(20000));
  EXPECT_GT(hosted.port, 0);
  EXPECT_THAT(listeners(hosted.port), ::testing::ElementsAre("0100007F"));
}

TEST(Store, CarriesValuesAndKeepsAttemptsApart) {
  const auto hosted = host_store("localhost", 0, milliseconds(20000));
  const auto first = connect_store(placement_at(0, hosted.port), milliseconds(20000));
  const auto second = connect_store(placement_at(1, hosted.port), milliseconds(20000));
  const auto later = connect_store(placement_at(1, hosted.port, 1), milliseconds(20000));
  first->set("key", std::string("value"));
  EXPECT_EQ(second->get_to_str("key"), "value");
  EXPECT_FALSE(later->check({"key"}));
}

TEST(Store, PortInUseIsNamedAtOnce) {
  const auto hosted = host_store("127.0.0.1", 0, milliseconds(20000));
  const auto line = error_of([&] { host_store("127.0.0.1", hosted.port, milliseconds(60000)); });
  EXPECT_THAT(line, HasSubstr(fmt::format("port {} of address 127.0.0.1 is in use", hosted.port)));
}

TEST(Store, AddressOfAnotherMachineIsRefused) {
  EXPECT_THAT(error_of([] { host_store("192.0.2.1", 0, milliseconds(60000)); }),
              HasSubstr("192.0.2.1 is not one of this machine"));
  EXPECT_THAT(error_of([] { host_store("no.such.host.invalid", 0, milliseconds(60000)); }),
              HasSubstr("\"no.such.host.invalid\" is not known"));
}

TEST(Store, SilentAddressEndsAtTheTimeout) {
  int port = 0;
  port = host_store("127.0.0.1", 0, milliseconds(20000)).port;  // free again now
  const auto start = std::chrono::steady_clock::now();
  const auto line = error_of([&] { connect_store(placement_at(1, port), milliseconds(300)); });
  EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(15000));
  EXPECT_THAT(line, HasSubstr(fmt::format("MASTER_ADDR=127.0.0.1 MASTER_PORT={}", port)));
  EXPECT_THAT(line, HasSubstr("within 0.3 s: Connection refused"));
}

TEST(Store, PortMustBeOne) {
  EXPECT_THAT(error_of([] { connect_store(placement_at(1, 0), milliseconds(300)); }), HasSubstr("MASTER_PORT=0"));
  EXPECT_THAT(error_of([] { host_store("127.0.0.1", 70000, milliseconds(300)); }), HasSubstr("port 70000"));
}

}  // namespace
}  // namespace levin
