# SPDX-License-Identifier: Apache-2.0
"""Hears djinnd's signals on the system bus: says "subscribed", then a line for each, "MEMBER ID" or
"MEMBER ID BYTES", until it is killed."""

from jeepney import DBusAddress, HeaderFields, MessageType, new_method_call
from jeepney.io.blocking import open_dbus_connection

NAME = "org.djinn.Manager1"
MANAGER = DBusAddress("/org/djinn/Manager1", bus_name=NAME, interface=NAME)


def main() -> None:
    with open_dbus_connection("SYSTEM") as connection:
        answer = connection.send_and_get_reply(new_method_call(MANAGER, "Subscribe"))
        if answer.header.message_type == MessageType.error:
            raise SystemExit(str(answer.body))
        print("subscribed", flush=True)
        while True:
            message = connection.receive()
            fields = message.header.fields
            if fields.get(HeaderFields.interface) == NAME:
                print(fields[HeaderFields.member], *message.body, flush=True)


if __name__ == "__main__":
    main()
