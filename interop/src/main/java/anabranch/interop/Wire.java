package anabranch.interop;

import java.io.IOException;
import java.io.InputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.URI;
import java.util.ArrayList;
import java.util.List;

/** A way to the broker that can be cut: connections through it break at once, and no new ones come about until it is mended. */
final class Wire implements AutoCloseable {
    private final URI broker;
    private final ServerSocket door;
    private final List<Socket> open = new ArrayList<>();
    private boolean isCut;

    Wire(String serviceUrl) throws IOException {
        broker = URI.create(serviceUrl);
        door = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
        inThread(this::accept);
    }

    String serviceUrl() {
        return "pulsar://127.0.0.1:" + door.getLocalPort();
    }

    synchronized int connections() {
        open.removeIf(Socket::isClosed);
        return open.size() / 2;
    }

    synchronized void cut() {
        isCut = true;
        open.forEach(Wire::close);
        open.clear();
    }

    synchronized void mend() {
        isCut = false;
    }

    @Override
    public void close() throws IOException {
        door.close();
        cut();
    }

    private void accept() throws IOException {
        while (true) {
            Socket client = door.accept();
            synchronized (this) {
                if (isCut) {
                    close(client);
                    continue;
                }
                Socket server = new Socket(broker.getHost(), broker.getPort());
                open.add(client);
                open.add(server);
                inThread(() -> pass(client, server));
                inThread(() -> pass(server, client));
            }
        }
    }

    private static void pass(Socket from, Socket to) throws IOException {
        try (from; to) {
            InputStream in = from.getInputStream();
            byte[] some = new byte[65_536];
            for (int count = in.read(some); count >= 0; count = in.read(some)) {
                to.getOutputStream().write(some, 0, count);
            }
        }
    }

    private interface Work {
        void run() throws IOException;
    }

    private static void inThread(Work work) {
        Thread thread = new Thread(() -> {
            try {
                work.run();
            } catch (IOException ended) {
                // The other side is gone, or the wire was cut.
            }
        }, "wire");
        thread.setDaemon(true);
        thread.start();
    }

    private static void close(Socket socket) {
        try {
            socket.close();
        } catch (IOException gone) {
            // So it is closed.
        }
    }
}
