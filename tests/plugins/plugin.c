/* A plugin that says who it is and opens nothing. Macros make it wrong in one way each:
 *
 *   NAME          its name
 *   MAGIC, MAJOR, MINOR, SIZE    what its table says
 *   NO_PROBE      the table has no function `probe`
 *   NO_TABLE      the entry symbol returns NULL
 *   NO_ENTRY      there is no entry symbol
 *   HANG          `probe` does not return
 *   CRASH         a constructor crashes
 *   LEAVE         a constructor ends the process
 *   PRINT         a constructor and `probe` write to standard output
 *   STRAY         `probe` leaves a process behind, and its number in this file
 *   REFUSE        `init` returns an error
 *   LOG           `init` writes into the log
 *   CODE          it brings device code; CODE_SIZE, CODE_API, NEEDS_API, KIND, HEADER, HEADER_SIZE, FORM are what that says
 *   UNDEFINED     it needs a symbol that nobody has
 *   DEPENDS       it calls libabsent.so */
#include <campanile/transport.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef NAME
#define NAME "c"
#endif
#ifndef MAGIC
#define MAGIC CAMPANILE_MAGIC
#endif
#ifndef MAJOR
#define MAJOR CAMPANILE_MAJOR
#endif
#ifndef MINOR
#define MINOR CAMPANILE_MINOR
#endif

/* What a newer version of the header may have at its end. */
struct table {
  CampanilePlugin plugin;
  void (*newer)(void);
};

#ifndef SIZE
#define SIZE sizeof(struct table)
#endif

#define TEXT(literal) {literal, sizeof(literal) - 1}

#ifdef CODE
#ifndef CODE_SIZE
#define CODE_SIZE sizeof(CampanileDeviceCode)
#endif
#ifndef CODE_API
#define CODE_API CAMPANILE_DEVICE_API
#endif
#ifndef NEEDS_API
#define NEEDS_API CODE_API
#endif
#ifndef KIND
#define KIND "ring"
#endif
#ifndef HEADER
#define HEADER "namespace ring {}"
#endif
#ifndef HEADER_SIZE
#define HEADER_SIZE sizeof(HEADER) - 1
#endif
#ifndef FORM
#define FORM CAMPANILE_FORM_QUEUE
#endif
static const CampanileDeviceCode code = {
    .struct_size = CODE_SIZE,
    .kind = TEXT(KIND),
    .header = {HEADER, HEADER_SIZE},
    .abi = CODE_API,
    .smallest_scope = CAMPANILE_SCOPE_WARP,
    .convergence = 1,
    .slots_per_op = 2,
    .largest_op = 4096,
    .alignment = 4,
    .producers_per_queue = 3,
    .signal_bits = 64,
    .form = FORM,
    .peer_bytes = 24,
};
#endif

#ifdef UNDEFINED
void campanile_test_nobody_has_this(void);
#endif
#ifdef DEPENDS
int campanile_test_absent(void);
#endif

#ifdef CRASH
__attribute__((constructor)) static void crash(void) { abort(); }
#endif
#ifdef LEAVE
__attribute__((constructor)) static void leave(void) { _exit(7); }
#endif

#ifdef PRINT
__attribute__((constructor)) static void greet(void) { puts("good morning"), fflush(stdout); }
#endif

static int32_t fail(CampanileError *error, int32_t status, const char *reason) {
  strncpy(error->reason, reason, sizeof error->reason - 1);
  return status;
}

static int32_t init(void *ctx, const CampanileHost *host, CampanileError *error) {
  (void)ctx;
#ifdef REFUSE
  return fail(error, CAMPANILE_STATUS_FAILED, "no licence for this machine");
#endif
#ifdef LOG
  CampanileText target = TEXT("c"), line = TEXT("hello from C");
  host->log(host->ctx, CAMPANILE_LOG_WARN, target, line);
#endif
  if (host->abi_major != CAMPANILE_MAJOR || !CAMPANILE_HAS(host, tracer)) {
    return fail(error, CAMPANILE_STATUS_FAILED, "the host is not what its header says");
  }
#ifdef UNDEFINED
  campanile_test_nobody_has_this();
#endif
#ifdef DEPENDS
  return campanile_test_absent();
#endif
  return CAMPANILE_STATUS_OK;
}

#ifndef NO_PROBE
static int32_t probe(void *ctx, const CampanileDeviceSink *devices, CampanileError *error) {
  CampanileText first = TEXT("first"), second = TEXT("second"), fine = TEXT("fine"), broken = TEXT("broken");
  (void)ctx;
  (void)error;
#ifdef PRINT
  greet();
#endif
#ifdef STRAY
  pid_t stray = fork();
  if (stray == 0) {
    pause();
    _exit(0);
  }
  FILE *file = fopen(STRAY, "w");
  fprintf(file, "%d", (int)stray);
  fclose(file);
#endif
#ifdef HANG
  for (;;) {
    pause();
  }
#endif
  devices->device(devices->ctx, first, 1, fine);
  devices->device(devices->ctx, second, 0, broken);
  return CAMPANILE_STATUS_OK;
}
#endif

static int32_t open_device(void *ctx, CampanileText device, const CampanileOpenOptions *options,
                           const CampanileTransport **transport, CampanileError *error) {
  (void)ctx;
  (void)options;
  (void)transport;
  if (device.bytes == 5 && memcmp(device.data, "first", 5) == 0) {
    /* Good, it says, and gives nothing. */
    return CAMPANILE_STATUS_OK;
  }
  return fail(error, CAMPANILE_STATUS_NO_DEVICE, "first");
}

#ifndef NO_ENTRY
static const struct table table = {
    .plugin =
        {
            .magic = MAGIC,
            .abi_major = MAJOR,
            .abi_minor = MINOR,
            .struct_size = SIZE,
            .name = TEXT(NAME),
            .version = TEXT("1.2"),
            .vendor = TEXT("a test"),
            .summary = TEXT("opens nothing"),
#ifdef CODE
            .device_abi = NEEDS_API,
            .device_code = &code,
#endif
            .init = init,
#ifndef NO_PROBE
            .probe = probe,
#endif
            .open = open_device,
        },
};

const CampanilePlugin *campanile_transport_plugin(uint32_t host_major) {
#ifdef NO_TABLE
  (void)host_major;
  return NULL;
#endif
  return host_major == CAMPANILE_MAJOR ? &table.plugin : NULL;
}
#endif
