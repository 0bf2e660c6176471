import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;

/** Chat URL MODEL prints the answer of a model as it comes, for a key that is none. */
class Chat {
    private static final Pattern CONTENT = Pattern.compile("\"content\":\"([^\"]*)\"");

    public static void main(String[] args) throws Exception {
        HttpRequest request = HttpRequest.newBuilder(URI.create(args[0]))
                .timeout(Duration.ofSeconds(20))
                .header("Content-Type", "application/json")
                .header("Authorization", "Bearer none")
                .POST(HttpRequest.BodyPublishers.ofString("{\"model\":\"" + args[1] + "\",\"stream\":true}"))
                .build();
        HttpResponse<Stream<String>> response = HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofLines());
        if (response.statusCode() != 200) {
            throw new IOException("" + response.statusCode());
        }
        response.body().forEach(line -> {
            Matcher m = CONTENT.matcher(line);
            if (m.find()) {
                System.out.print(m.group(1));
                System.out.flush();
            }
        });
    }
}
