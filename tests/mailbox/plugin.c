/* The entry symbol: who this is, what it could use, and how it is opened. */

#include "mailbox.h"

#include <string.h>

#define TEXT(literal) {literal, sizeof(literal) - 1}

static const CampanileText device = TEXT("node");

static int32_t probe(void *ctx, const CampanileDeviceSink *devices, CampanileError *error)
{
    (void)ctx, (void)error;
    devices->device(devices->ctx, device, 1, (CampanileText)TEXT("ranks of this machine, over unix-domain sockets"));
    return CAMPANILE_STATUS_OK;
}

static int32_t open_device(void *ctx, CampanileText name, const CampanileOpenOptions *options,
                           const CampanileTransport **transport, CampanileError *error)
{
    (void)ctx;
    if (name.bytes != device.bytes || memcmp(name.data, device.data, device.bytes) != 0)
        return refuse(error, CAMPANILE_STATUS_NO_DEVICE, device.data, "its only device is %s", device.data);
    return transport_open(options, transport, error);
}

static const CampanilePlugin plugin = {
    .magic = CAMPANILE_MAGIC,
    .abi_major = CAMPANILE_MAJOR,
    .abi_minor = CAMPANILE_MINOR,
    .struct_size = sizeof plugin,
    .name = TEXT("mailbox"),
    .version = TEXT("0.1.0"),
    .vendor = TEXT("Campanile"),
    .summary = TEXT("messages between the ranks of one machine over sockets, executed by a progress thread"),
    .probe = probe,
    .open = open_device,
};

const CampanilePlugin *campanile_transport_plugin(uint32_t host_major)
{
    /* A host of another version finds the version in the table, and a shim for it or not. */
    (void)host_major;
    return &plugin;
}
