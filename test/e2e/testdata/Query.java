import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.ResultSet;

/** Query URL SQL prints the first value, or each cause of the failure on a line of standard error. */
class Query {
    public static void main(String[] args) {
        try (Connection connection = DriverManager.getConnection(args[0] + "&password=" + System.getenv("PGPASSWORD").replace(" ", "%20"))) {
            ResultSet rows = connection.createStatement().executeQuery(args[1]);
            rows.next();
            System.out.println(rows.getString(1));
        } catch (Exception e) {
            for (Throwable t = e; t != null; t = t.getCause()) {
                System.err.println(t);
            }
            System.exit(1);
        }
    }
}
