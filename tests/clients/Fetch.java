// Asks for one URL by Java's HttpClient and prints the body; exits with 1 where that fails or is refused.
// usage: java Fetch default|direct URL CA.pem
import java.io.InputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.time.Duration;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

public class Fetch {
    public static void main(String[] args) throws Exception {
        var builder = HttpClient.newBuilder().sslContext(trusting(Path.of(args[2])));
        // Without a word of the program the JVM's own properties name the proxy.
        if (args[0].equals("direct")) {
            builder.proxy(HttpClient.Builder.NO_PROXY);
        }
        var request = HttpRequest.newBuilder(URI.create(args[1])).timeout(Duration.ofSeconds(30)).build();
        try {
            var response = builder.build().send(request, HttpResponse.BodyHandlers.ofString());
            System.out.println(response.statusCode() + " " + response.body());
            System.exit(response.statusCode() == 200 ? 0 : 1);
        } catch (java.io.IOException error) {
            System.out.println(error);
            System.exit(1);
        }
    }

    static SSLContext trusting(Path authority) throws Exception {
        var store = KeyStore.getInstance(KeyStore.getDefaultType());
        store.load(null, null);
        try (InputStream pem = Files.newInputStream(authority)) {
            store.setCertificateEntry("ca", CertificateFactory.getInstance("X.509").generateCertificate(pem));
        }
        var trusted = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trusted.init(store);
        var context = SSLContext.getInstance("TLS");
        context.init(null, trusted.getTrustManagers(), null);
        return context;
    }
}
