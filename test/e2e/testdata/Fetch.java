import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;

/** Fetch URL prints what is there, or each cause of the failure on a line of standard error. */
class Fetch {
    public static void main(String[] args) {
        try {
            HttpRequest request = HttpRequest.newBuilder(URI.create(args[0])).timeout(Duration.ofSeconds(20)).build();
            HttpResponse<String> response = HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString());
            if (response.statusCode() != 200) {
                throw new IOException(response.statusCode() + ", " + response.headers().firstValue("X-Sandboxallow-Reason").orElse("no reason"));
            }
            System.out.print(response.body());
        } catch (Exception e) {
            for (Throwable t = e; t != null; t = t.getCause()) {
                System.err.println(t);
            }
            System.exit(1);
        }
    }
}
