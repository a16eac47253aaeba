# Libraries of the distribution. Each is used by few files of ours; a missing optional one drops its component with a line.
find_package(Threads REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(ZLIB REQUIRED)
